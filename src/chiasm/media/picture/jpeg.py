"""JPEG headers: a walk over the segments before the first scan."""

from collections.abc import Iterator

import numpy as np

from chiasm.errors import MediaDecodeError
from chiasm.media.picture.bytes import StepLimit, numbers
from chiasm.media.picture.tiff import exif_orientation

_EXIF = b"Exif\0\0"
_APP1, _SOS, _EOI = 0xE1, 0xDA, 0xD9
_FRAME_STARTS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_NO_SEGMENT = frozenset({0x00, 0x01, 0xFF, *range(0xD0, 0xD9)})  # stuffing, fill bytes, markers without content
_UNUSED_APP = 0xEF
_MAX_SEGMENTS = 5000
_MAX_JUNK_BYTES = 4096
"""Bytes between segments that no decoder needs. Some are common; Pillow steps over them one by one in Python."""


def read_jpeg(data: bytes | bytearray) -> tuple[int, int, int]:
    """Return stored width and height and the EXIF orientation. What follows the first picture is not looked at."""
    orientation: int | None = None
    for marker, start, end in _segments(data):
        if orientation is None and _is_exif(marker, data, start):
            orientation = exif_orientation(data[start + len(_EXIF) : end])
        if marker in _FRAME_STARTS:
            height, width = numbers(">HH", data, start + 1)
            return width, height, orientation or 1
    raise MediaDecodeError("The jpeg data has no frame header")


def num_scans(data: bytes) -> int:
    """Count what may begin a scan. A twentieth of the time that decoding takes would go into `bytes.count`."""
    found = 0
    for start in (0, 1):
        pairs = np.frombuffer(data, "<u2", (len(data) - start) // 2, start)
        found += int(np.count_nonzero(pairs == (_SOS << 8 | 0xFF)))
    return found


def without_exif(data: bytes) -> bytes:
    """Return a copy whose EXIF blocks are marked as something nobody reads; the pixels are the same.

    Walks to the first scan, so it also refuses what `read_jpeg` did not look at because it follows the frame header.
    """
    copy = bytearray(data)
    for marker, start, _ in _segments(data):
        if _is_exif(marker, data, start):
            copy[start - 3] = _UNUSED_APP
    return bytes(copy)


def _is_exif(marker: int, data: bytes | bytearray, start: int) -> bool:
    return marker == _APP1 and data[start : start + len(_EXIF)] == _EXIF


def _segments(data: bytes | bytearray) -> Iterator[tuple[int, int, int]]:
    """Yield (marker, start, end) of each segment's content, up to the first scan."""
    at, num_junk_bytes, steps = 2, 0, StepLimit(_MAX_SEGMENTS + _MAX_JUNK_BYTES)
    while True:
        steps.step()
        found = data.find(b"\xff", at)
        (marker,) = numbers("B", data, found + 1 if found >= 0 else len(data))
        num_junk_bytes += found - at + (marker in _NO_SEGMENT)
        if num_junk_bytes > _MAX_JUNK_BYTES:
            raise MediaDecodeError("The jpeg data has junk between its segments")
        if marker in _NO_SEGMENT:
            at = found + 1
            continue
        if marker in (_SOS, _EOI):
            return
        (length,) = numbers(">H", data, found + 2)
        if length < 2:
            raise MediaDecodeError("The jpeg data has a malformed segment")
        at = found + 2 + length
        yield marker, found + 4, at
