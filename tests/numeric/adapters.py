"""Adapters as PEFT writes them, with random weights, and models with them merged."""

import copy
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model

from chiasm.protocol.adapters import AdapterLoad, AdapterRef
from chiasm.workers.local import LocalWorker

LANGUAGE = r"(?!.*(visual|vision)).*layers\.\d+\.(self_attn|mlp)\.({})$"
"""Of the language model: towers have modules of the same names."""
ALL_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def write_adapter(
    model: Any, directory: Path, seed: int, *, targets: tuple[str, ...] = ALL_TARGETS, rank: int = 4, **more: Any
) -> Path:
    """An adapter that changes what is said, for a transformers model, which is left as it is."""
    torch.manual_seed(seed)
    pattern = LANGUAGE.format("|".join(targets))
    config = LoraConfig(r=rank, lora_alpha=rank, target_modules=pattern, init_lora_weights=False, **more)
    adapted = get_peft_model(copy.deepcopy(model), config)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_" in name:
                weight.normal_(std=0.5 if "lora_B" in name else 0.3)
    adapted.save_pretrained(directory)
    return directory


def merged(model: Any, directory: Path) -> Any:
    """A copy of a model with an adapter's weights added to its own."""
    return PeftModel.from_pretrained(copy.deepcopy(model), directory).merge_and_unload().eval()


async def loaded(worker: LocalWorker, directory: Path) -> AdapterRef:
    """An adapter that a worker has loaded under its folder's name."""
    load = AdapterLoad(name=directory.name, directory=str(directory))
    return (await worker.load_adapter(load, 30)).ref
