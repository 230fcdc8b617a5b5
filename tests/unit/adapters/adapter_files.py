"""Adapters without torch: a folder with a configuration and weights of a tiny base model, to be spoiled by tests."""

import json
from pathlib import Path

from chiasm.adapters.sizes import BaseModel

BASE = BaseModel(names=frozenset({"tiny"}), num_layers=2, hidden=8, attention=8, key_value=4, intermediate=12)
RANK = 2
PREFIX = "base_model.model.model.language_model.layers."


def shapes(layer=0, target="self_attn.q_proj", outputs=8, inputs=8, rank=RANK):
    name = f"{PREFIX}{layer}.{target}.lora_"
    return {f"{name}A.weight": (rank, inputs), f"{name}B.weight": (outputs, rank)}


def safetensors(tensors, *, dtype="F32", size=4, header=None, tail=b""):
    """A file of tensors (name -> shape) full of zeros; `header` changes entries."""
    entries, end = {}, 0
    for name, shape in tensors.items():
        num_bytes = size
        for length in shape:
            num_bytes *= length
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + num_bytes]}
        end += num_bytes
    for name, change in (header or {}).items():
        entries[name] = entries.get(name, {}) | change
    data = json.dumps({"__metadata__": {"format": "pt"}} | entries).encode()
    return len(data).to_bytes(8, "little") + data + bytes(end) + tail


def write(folder: Path, weights=None, **config) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    fields = {"peft_type": "LORA", "r": RANK, "lora_alpha": 4, "base_model_name_or_path": "org/Tiny"} | config
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    (folder / "adapter_model.safetensors").write_bytes(safetensors(shapes()) if weights is None else weights)
    return folder
