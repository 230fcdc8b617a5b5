"""What a producer says about an embedding, and the checks a consumer makes before it believes it.

It travels in `ec_transfer_params`, beside what vLLM puts there: {identity: {item_indices, metadata, chiasm: {...}}}.
"""

from collections.abc import Mapping
from math import prod
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta

from chiasm.connectors.base import ITEM_SIZE_BYTES, checksum
from chiasm.errors import ChecksumMismatchError, HandleExpiredError, LayoutMismatchError

FIELD = "chiasm"
VERSION = 1
Rows = Annotated[int, Meta(ge=1, le=2**24)]


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """What the bytes are. `shape` is [rows, width]; `revision` names model and processor."""

    shape: tuple[Rows, Rows]
    dtype: Literal["float32", "bfloat16", "float16"]
    revision: Annotated[str, Meta(max_length=128)]

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole embedding."""
        return prod(self.shape) * ITEM_SIZE_BYTES[self.dtype]


class Announcement(msgspec.Struct, frozen=True, kw_only=True):
    """Where an embedding is offered and what it is; `seal` binds this to the identity and the metadata beside it."""

    version: int = VERSION
    transport: Literal["shm", "tcp"]
    address: Annotated[str, Meta(max_length=1024)]
    layout: Layout
    checksum: Annotated[str, Meta(max_length=64)]
    seal: str = ""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """One item of a request as its consumer sees it.

    `metadata` are the values that size its placeholders (a grid), None when they cannot be seen. `end` is the position
    behind its last placeholder. `has_media` says that the consumer could encode it itself.
    """

    identity: str
    num_rows: int
    end: int
    metadata: Mapping[str, object] | None
    has_media: bool = False


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What every embedding must be for this consumer's model. `merge_size`: patches per embedding, along each side."""

    width: int
    dtype: str
    revision: str
    merge_size: int = 1


def is_same_metadata(first: Mapping[str, object], second: Mapping[str, object]) -> bool:
    """Compare by names and numbers; how deep the numbers are nested is a matter of taste."""
    return {k: _flat(v) for k, v in first.items()} == {k: _flat(v) for k, v in second.items()}


def sealed(announcement: Announcement, identity: str, metadata: Mapping[str, object]) -> Announcement:
    """Bind an announcement to what it is about."""
    return msgspec.structs.replace(announcement, seal=_seal(announcement, identity, metadata))


def read_announcement(identity: str, params: object) -> tuple[Announcement, Mapping[str, object]]:
    """Find and check what a request's `ec_transfer_params` say about an item; returns it and its metadata.

    Raises:
        HandleExpiredError: Nothing is said about it, or that the producer could not offer it.
        LayoutMismatchError: Malformed, or of another version.
        ChecksumMismatchError: Identity, metadata and announcement do not belong together.
    """
    entry = params.get(identity) if isinstance(params, Mapping) else None
    said = entry.get(FIELD) if isinstance(entry, Mapping) else None
    if not isinstance(said, Mapping) or not isinstance(entry, Mapping):
        raise HandleExpiredError("The request does not say where the embedding is")
    if "error" in said:
        raise HandleExpiredError("The encoder could not offer the embedding")
    if said.get("version") != VERSION:
        raise LayoutMismatchError(f"The announcement is of version {said.get('version')!r:.20}, not {VERSION}")
    try:
        announcement = msgspec.convert(said, Announcement)
    except msgspec.ValidationError as error:
        raise LayoutMismatchError(f"The announcement is malformed: {error}") from error
    metadata = entry.get("metadata")
    if not isinstance(metadata, Mapping) or announcement.seal != _seal(announcement, identity, metadata):
        raise ChecksumMismatchError("Announcement, identity and metadata do not belong together")
    return announcement, cast("Mapping[str, object]", metadata)


def check_wanted(layout: Layout, metadata: Mapping[str, object], wanted: Wanted) -> None:
    """Compare what is there with what a request reserved places for. Raises `LayoutMismatchError`."""
    if wanted.metadata is None:
        raise LayoutMismatchError("The request's grid cannot be seen", hint="Use --mm-processor-cache-type lru")
    if layout.shape[0] != wanted.num_rows:
        raise LayoutMismatchError(f"{layout.shape[0]} embeddings are there, the request has {wanted.num_rows} places")
    if not is_same_metadata(metadata, wanted.metadata):
        raise LayoutMismatchError("The request's grid is not the one that was encoded")


def check_expected(layout: Layout, metadata: Mapping[str, object], expected: Expected) -> None:
    """Compare what is announced with what the model takes. Raises `LayoutMismatchError`."""
    for name, grids in metadata.items():
        if name.endswith("grid_thw") and not _is_grid(_flat(grids), expected.merge_size):
            raise LayoutMismatchError("The announced grid is none that the model could have encoded")
    if "image_grid_thw" in metadata and prod(_flat(metadata["image_grid_thw"])) != _num_patches(layout, expected):
        raise LayoutMismatchError("The announced grid has another number of patches than the embedding")
    found = {"width": layout.shape[1], "dtype": layout.dtype, "revision": layout.revision}
    for name, value in found.items():
        if value != getattr(expected, name):
            raise LayoutMismatchError(
                f"The embedding's {name} is {value}, expected {getattr(expected, name)}",
                hint="Start encoder and consumer with the same model directory and --dtype",
            )


def _seal(announcement: Announcement, identity: str, metadata: Mapping[str, object]) -> str:
    numbers = {name: [_whole(number) for number in _flat(value)] for name, value in metadata.items()}
    parts = [announcement.version, identity, numbers, msgspec.to_builtins(announcement.layout), announcement.checksum]
    return checksum(msgspec.json.encode(parts, order="sorted"))


def _is_grid(numbers: list[Any], merge_size: int) -> bool:
    """Frames, rows and columns of patches, one or more times: all positive, rows and columns merged evenly."""
    are_positive = all(type(number) is int and number > 0 for number in numbers)
    return are_positive and len(numbers) % 3 == 0 and all(n % merge_size == 0 for n in numbers[1::3] + numbers[2::3])


def _num_patches(layout: Layout, expected: Expected) -> int:
    return layout.shape[0] * expected.merge_size**2


def _whole(number: object) -> object:
    """A number as it is after JSON of any make: some write 1.0 as 1."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _flat(value: object) -> list[Any]:
    if isinstance(value, list | tuple):
        return [number for part in value for number in _flat(part)]
    return [value]
