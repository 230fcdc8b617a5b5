"""TIFF headers, which are also what EXIF blocks are made of."""

from chiasm.errors import MediaDecodeError
from chiasm.media.picture.bytes import ShortDataError, numbers

_WIDTH, _HEIGHT, _ORIENTATION, _TILE_WIDTH, _TILE_HEIGHT = 256, 257, 274, 322, 323
_LAYOUTS = {1: "B", 3: "H", 4: "I"}  # byte, short, long: the types that sizes and orientation come in
_ENTRY_BYTES = 12


def read_tiff(data: bytes | bytearray) -> tuple[int, int, int]:
    """Return stored width and height and the orientation of the first picture."""
    tags = _first_directory(data)
    if _WIDTH not in tags or _HEIGHT not in tags:
        raise MediaDecodeError("The tiff data states no size")
    width, height = tags[_WIDTH], tags[_HEIGHT]
    # A decoder allocates whole tiles: one far larger than the picture is a bomb with a small header.
    if tags.get(_TILE_WIDTH, 0) > 2 * width + 4096 or tags.get(_TILE_HEIGHT, 0) > 2 * height + 4096:
        raise MediaDecodeError("The tiff data has tiles far larger than the picture")
    return width, height, upright_or(tags.get(_ORIENTATION, 1))


def exif_orientation(block: bytes | bytearray) -> int:
    """Return the orientation in an EXIF block, 1 when there is none or the block is malformed."""
    try:
        return upright_or(_first_directory(block).get(_ORIENTATION, 1))
    except ShortDataError:
        return 1


def upright_or(orientation: int) -> int:
    """Return a defined orientation as it is, any other value as 1."""
    return orientation if 1 <= orientation <= 8 else 1


def _first_directory(data: bytes | bytearray) -> dict[int, int]:
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(bytes(data[:4]))
    if order is None:
        raise ShortDataError
    (offset,) = numbers(order + "I", data, 4)
    (num_entries,) = numbers(order + "H", data, offset)
    tags: dict[int, int] = {}
    for at in range(offset + 2, offset + 2 + num_entries * _ENTRY_BYTES, _ENTRY_BYTES):
        tag, kind, count = numbers(order + "HHI", data, at)
        if count == 1 and kind in _LAYOUTS:
            tags.setdefault(tag, *numbers(order + _LAYOUTS[kind], data, at + 8))  # of repeats the first counts
    return tags
