"""How much the weights of a model directory take, from the headers of its files alone."""

import json
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from chiasm.errors import EngineStartError

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_FLOATING = ("F64", "F32", "F16", "BF16")
_STORED_BYTES = {"I64": 8, "I32": 4, "I16": 2, "U8": 1, "I8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1}
_TOWER_NAMES = ("visual.", "vision_tower.", "vision_model.", "multi_modal_projector.", "connector.")
_MAX_HEADER_BYTES = 256 * 2**20


class Weights(NamedTuple):
    """Bytes of the vision tower with its projector, and of the rest, once loaded."""

    tower_bytes: int
    language_bytes: int


def weights_of(directory: Path, dtype: str) -> Weights:
    """Add up a directory's tensors as they are when loaded in `dtype`; quantized ones stay as they are stored.

    Raises:
        EngineStartError: There are none, or a file cannot be read.
    """
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise EngineStartError(
            f"{directory.name} has no .safetensors files", hint="Give --weights-gib where they are elsewhere"
        )
    sums = {True: 0, False: 0}
    for name, tensor in (entry for file in files for entry in _tensors(file)):
        each = DTYPE_BYTES[dtype] if tensor["dtype"] in _FLOATING else _STORED_BYTES.get(tensor["dtype"], 1)
        sums[any(part in name for part in _TOWER_NAMES)] += prod(tensor["shape"]) * each
    return Weights(sums[True], sums[False])


def _tensors(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            if size > _MAX_HEADER_BYTES:
                raise ValueError("its header has no end")
            header = json.loads(opened.read(size))
    except (OSError, ValueError) as error:
        raise EngineStartError(f"Cannot read {file.name}: {error}", hint="Download the model again") from error
    for name, tensor in header.items():
        if name != "__metadata__":
            yield name, tensor
