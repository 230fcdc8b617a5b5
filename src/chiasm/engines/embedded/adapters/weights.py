"""An adapter's tensors, stacked like the projections that the decoders compute at once."""

from collections.abc import Mapping, Sequence

import torch

from chiasm.adapters.files import AdapterFiles
from chiasm.adapters.sizes import BaseModel
from chiasm.adapters.tensors import Place
from chiasm.engines.embedded.decoder.low_rank import AdapterLayers, LowRank, Part
from chiasm.errors import AdapterError

_STACKED: Mapping[Part, Sequence[str]] = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "out": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def adapter_layers(files: AdapterFiles, base: BaseModel) -> AdapterLayers:
    """In float32, with the scale in `expand`. Raises `AdapterError` for numbers that are not finite."""
    return [
        {
            part: _stacked(files, base, layer, targets)
            for part, targets in _STACKED.items()
            if _present(files, layer, targets)
        }
        for layer in range(base.num_layers)
    ]


def num_bytes_of(files: AdapterFiles, base: BaseModel) -> int:
    """What `adapter_layers` will take; decoders add a little to even it out. Files may take a sixth of it."""
    num_floats = 0
    for layer in range(base.num_layers):
        for targets in _STACKED.values():
            outputs, inputs = sum(base.shape_of(target)[0] for target in targets), base.shape_of(targets[0])[1]
            num_floats += files.config.r * len(_present(files, layer, targets)) * (outputs + inputs)
    return num_floats * torch.float32.itemsize


def _present(files: AdapterFiles, layer: int, targets: Sequence[str]) -> list[str]:
    return [target for target in targets if Place(layer, target, "A") in files.stored]


def _stacked(files: AdapterFiles, base: BaseModel, layer: int, targets: Sequence[str]) -> LowRank:
    """The projections' `expand`s stand beside each other, each below the rows of its own `shrink`."""
    present = _present(files, layer, targets)
    rank, outputs = files.config.r, [base.shape_of(target)[0] for target in targets]
    expand = torch.zeros(sum(outputs), rank * len(present))
    for column, target in enumerate(present):
        row = sum(outputs[: targets.index(target)])
        rows, columns = slice(row, row + base.shape_of(target)[0]), slice(column * rank, (column + 1) * rank)
        expand[rows, columns] = _finite(_tensor(files, place := Place(layer, target, "B")) * files.config.scale, place)
    shrink = torch.cat([_tensor(files, Place(layer, target, "A")) for target in present])
    return LowRank(shrink, expand)


def _tensor(files: AdapterFiles, place: Place) -> torch.Tensor:
    stored = files.stored[place]
    first, last = stored.data_offsets
    raw = bytearray(memoryview(files.data)[files.start + first : files.start + last])  # aligned, and ours
    return _finite(torch.frombuffer(raw, dtype=_DTYPES[stored.dtype]).view(stored.shape).float(), place)


def _finite(tensor: torch.Tensor, place: Place) -> torch.Tensor:
    """The same. Raises `AdapterError` for numbers that are not finite, also for what only the scale made of them."""
    if not bool(tensor.isfinite().all()):
        raise AdapterError(f"The adapter has numbers that are not finite in {place.target} of layer {place.layer}")
    return tensor
