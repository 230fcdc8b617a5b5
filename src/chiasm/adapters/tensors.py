"""The header of a safetensors file: which tensors of an adapter lie where, checked without touching their bytes."""

import re
from collections.abc import Mapping
from math import prod
from typing import Literal, NamedTuple

import msgspec

from chiasm.adapters.sizes import TARGETS, BaseModel
from chiasm.errors import AdapterError

Dtype = Literal["F32", "F16", "BF16"]
ITEM_BYTES: Mapping[str, int] = {"F32": 4, "F16": 2, "BF16": 2}
_MAX_HEADER_BYTES = 8 * 2**20
_LENGTH_BYTES = 8
_NAME = re.compile(
    r"base_model\.model\.(?:(?:model|language_model|text_model)\.){0,3}layers\.(\d{1,4})\."
    rf"(?:self_attn|mlp)\.({'|'.join(TARGETS)})\.lora_([AB])(?:\.default)?\.weight"
)
_EYES = re.compile(r"visual|vision|image|merger|projector|connector", re.IGNORECASE)


class Place(NamedTuple):
    """Of one layer's projection: `side` A is [rank, inputs], B is [outputs, rank]."""

    layer: int
    target: str
    side: str


class StoredTensor(msgspec.Struct, frozen=True):
    """An entry of the header; offsets count from the header's end."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


Stored = Mapping[Place, StoredTensor]


def read_header(data: bytes, base: BaseModel, rank: int) -> tuple[Stored, int]:
    """Check all of the header; returns the tensors and where their bytes begin. Raises `AdapterError`."""
    start = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    if len(data) < _LENGTH_BYTES or start > min(len(data), _MAX_HEADER_BYTES):
        raise AdapterError("adapter_model.safetensors is cut off, or no safetensors file")
    try:
        entries = msgspec.json.decode(data[_LENGTH_BYTES:start], type=dict[str, msgspec.Raw])
        entries.pop("__metadata__", None)
        tensors = {name: msgspec.json.decode(entry, type=StoredTensor) for name, entry in entries.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise AdapterError(f"The header of adapter_model.safetensors is damaged: {str(error)[:200]}") from error
    _check_places(tensors, len(data) - start)
    stored: dict[Place, StoredTensor] = {}
    for name, tensor in tensors.items():
        place = _place(name, base.num_layers)
        if place in stored:
            raise AdapterError(f"Two tensors of the adapter are called '{name[:100]}'")
        _check_shape(name, place, tensor, base, rank)
        stored[place] = tensor
    _check_pairs(stored)
    return stored, start


def _place(name: str, num_layers: int) -> Place:
    match = _NAME.fullmatch(name)
    if match is None:
        why = (
            "it adapts the vision tower or the projector; embeddings would no longer be shared with the base model"
            if _EYES.search(name)
            else f"served are {', '.join(TARGETS)} of the language model"
        )
        raise AdapterError(f"The adapter's tensor '{name[:100]}' is not supported: {why}")
    if int(match[1]) >= num_layers:
        raise AdapterError(f"The adapter's tensor '{name[:100]}' is for a layer that the model does not have")
    return Place(int(match[1]), match[2], match[3])


def _check_places(tensors: Mapping[str, StoredTensor], num_bytes: int) -> None:
    """All bytes belong to one tensor each, and each has as many as its shape and type say."""
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda entry: entry[1].data_offsets):
        size = ITEM_BYTES.get(tensor.dtype)
        if size is None:
            raise AdapterError(f"The adapter's tensor '{name[:100]}' is of type {tensor.dtype[:20]}")
        first, last = tensor.data_offsets
        is_matrix = len(tensor.shape) == 2 and all(0 < length < 2**32 for length in tensor.shape)  # before the product
        is_sound = is_matrix and last - first == prod(tensor.shape) * size
        if first != end or not is_sound:
            raise AdapterError(f"The adapter's tensor '{name[:100]}' does not fit its place in the file")
        end = last
    if end != num_bytes or not tensors:
        raise AdapterError(f"The adapter's tensors have {end} bytes, the file {num_bytes}")


def _check_shape(name: str, place: Place, tensor: StoredTensor, base: BaseModel, rank: int) -> None:
    outputs, inputs = base.shape_of(place.target)
    wanted = (rank, inputs) if place.side == "A" else (outputs, rank)
    if tensor.shape != wanted:
        raise AdapterError(
            f"The adapter's tensor '{name[:100]}' is {list(tensor.shape)}; "
            f"rank {rank} and the model want {list(wanted)}",
            hint="Is it for another model?",
        )


def _check_pairs(stored: Stored) -> None:
    for place in stored:
        if place._replace(side="B" if place.side == "A" else "A") not in stored:
            raise AdapterError(f"The adapter has only one of the two matrices of {place.target} in layer {place.layer}")
