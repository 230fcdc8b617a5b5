"""GIF headers: the screen, the first frame's extent, and whether a second frame follows."""

from chiasm.errors import MediaDecodeError
from chiasm.media.picture.bytes import ShortDataError, StepLimit, numbers

_EXTENSION, _IMAGE = 0x21, 0x2C
_MAX_EXTENSIONS = 1000
_MAX_BLOCKS = 500_000  # of at most 255 bytes each


def read_gif(data: bytes | bytearray) -> tuple[int, int, bool]:
    """Return width, height and whether it is animated. A first frame beyond the screen widens the picture."""
    width, height, flags = numbers("<HHB", data, 6)
    at = _next_image(data, 13 + _table_bytes(flags))
    if at is None:
        raise MediaDecodeError("The gif data holds no picture")
    left, top, frame_width, frame_height, flags = numbers("<HHHHB", data, at + 1)
    size = max(width, left + frame_width), max(height, top + frame_height)
    try:
        end = _skip_blocks(data, at + 10 + _table_bytes(flags) + 1)
        is_animated = _next_image(data, end) is not None
    except ShortDataError:
        is_animated = False  # cut off after the first frame, or only a prefix
    return *size, is_animated


def _table_bytes(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _next_image(data: bytes | bytearray, at: int) -> int | None:
    """Offset of the next image descriptor, or None when the file ends without one."""
    extensions = StepLimit(_MAX_EXTENSIONS)
    while True:
        extensions.step()
        (kind,) = numbers("B", data, at)
        if kind == _IMAGE:
            return at
        if kind != _EXTENSION:
            return None
        at = _skip_blocks(data, at + 2)


def _skip_blocks(data: bytes | bytearray, at: int) -> int:
    blocks = StepLimit(_MAX_BLOCKS)
    while True:
        blocks.step()
        (length,) = numbers("B", data, at)
        at += 1 + length
        if length == 0:
            return at
