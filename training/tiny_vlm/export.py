"""Package a checkpoint: `python -m tiny_vlm.export CHECKPOINT PACKAGE` casts its weights to bf16."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file


def export(checkpoint: Path, package: Path) -> None:
    """Replace the weights in `package`, whose other files the checkpoint must go with."""
    weights = {name: w.to(torch.bfloat16) for name, w in load_file(checkpoint / "model.safetensors").items()}
    target = package / "model.safetensors"
    if target.exists():
        with safe_open(target, "pt") as old:
            before = {name: tuple(old.get_slice(name).get_shape()) for name in old.keys()}  # noqa: SIM118
        if before != {name: tuple(w.shape) for name, w in weights.items()}:
            raise SystemExit("the checkpoint has another architecture than the package")
    fresh = target.with_suffix(".new")
    save_file(weights, fresh, metadata={"format": "pt"})
    fresh.chmod(0o644)
    fresh.rename(target)


if __name__ == "__main__":
    export(Path(sys.argv[1]), Path(sys.argv[2]))
