"""Average two checkpoints: `python -m tiny_vlm.merge OLD NEW 0.8 OUT` keeps eight parts of NEW and two of OLD.

A model trained on for other pictures and its ancestor lie in one valley: between them is one that has most of what
both know.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

WEIGHTS = "model.safetensors"


def merge(old: Path, new: Path, share: float, out: Path) -> None:
    """Write a checkpoint with `share` of the weights of `new`; all other files are those of `new`."""
    if not 0 <= share <= 1:
        raise SystemExit("the share of the new weights is between 0 and 1")
    ours, theirs = load_file(new / WEIGHTS), load_file(old / WEIGHTS)
    if {name: w.shape for name, w in ours.items()} != {name: w.shape for name, w in theirs.items()}:
        raise SystemExit("the checkpoints are of different architectures")
    shutil.copytree(new, out)
    mixed = {name: (share * w.float() + (1 - share) * theirs[name].float()) for name, w in ours.items()}
    save_file(mixed, out / WEIGHTS, metadata={"format": "pt"})


if __name__ == "__main__":
    merge(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4]))
