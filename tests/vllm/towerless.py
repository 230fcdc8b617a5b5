"""A model whose vision tower vLLM can do without: it has no deepstack levels. Served whole, and split by Chiasm."""

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from tests.vllm.gateways import Gateway, gateway
from tests.vllm.logs import Log, heard
from tests.vllm.servers import MODEL, VllmServer, start, wait_ready

SIDE = 196
"""Of pictures that have the grid of the packaged model's pictures of 224 pixels, for which the failure table is."""
_FROM_PACKAGED = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
_IDS = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
_TEXT: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 4, 4]},
}
_VISION: dict[str, Any] = {
    "depth": 3,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_heads": 2,
    "out_hidden_size": 128,
    "patch_size": 14,
    "window_size": 56,
    "fullatt_block_indexes": [1],
}


class Towerless(NamedTuple):
    """The same model twice.

    Attributes:
        model: Its directory.
        whole: One server that does everything, asked without Chiasm.
        split: An encoder and a server for the rest, which never encodes, started by Chiasm.
        token: The split servers' key.
        log: What those have printed.
    """

    model: Path
    whole: VllmServer
    split: Gateway
    token: str
    log: Log

    def addresses(self) -> dict[str, str]:
        """Where the split servers listen, by name."""
        processes = self.split.backend.supervisor._processes
        return {name: processes[name].address for name in ("encode-0", "prefill-0")}


@contextmanager
def towerless(folder: Path) -> Iterator[Towerless]:
    """Build the model, and start all three servers at once."""
    model, token = qwen2_5_vl(folder / "model"), secrets.token_hex(8)
    own = (f"engine.model={model}", "engine.served_name=tiny_vlm", f"routing.worker_token={token}")
    split = ("engine.kind=vllm", "routing.topology=e-pd", "routing.local_encode=never")
    with ExitStack() as closing:
        limit = ("--limit-mm-per-prompt", '{"image": 4, "video": 0}')
        whole = start(*limit, "--generation-config", "vllm", model=model, log_path=folder / "whole.log")
        closing.callback(whole.stop)
        log = closing.enter_context(heard())
        os.environ["VLLM_LOG_MODEL_INSPECTION"] = "1"
        try:
            made = closing.enter_context(gateway(*split, *own))
        finally:
            del os.environ["VLLM_LOG_MODEL_INSPECTION"]
        wait_ready(whole)
        yield Towerless(model, whole, made, token, log)


def qwen2_5_vl(directory: Path) -> Path:
    """Write a Qwen2.5-VL with the packaged model's tokenizer.

    Random weights are scaled up, so that answers vary with the pictures instead of repeating one token.
    """
    directory.mkdir()
    packaged = json.loads((MODEL / "config.json").read_text())
    text = {name: packaged["text_config"][name] for name in ("vocab_size", "bos_token_id", "eos_token_id")}
    ids = {name: packaged[name] for name in _IDS}
    config = AutoConfig.for_model("qwen2_5_vl", text_config=_TEXT | text, vision_config=_VISION, **ids)
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                weight.mul_(3 if "embed_tokens" in name else 8)
    model.save_pretrained(directory)
    for file in _FROM_PACKAGED:
        shutil.copy(MODEL / file, directory / file)
    processor = json.loads((MODEL / "preprocessor_config.json").read_text())
    processor |= {"processor_class": "Qwen2_5_VLProcessor", "patch_size": _VISION["patch_size"]}
    (directory / "preprocessor_config.json").write_text(json.dumps(processor))
    return directory
