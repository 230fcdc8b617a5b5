"""Whether an MP4 or QuickTime file asks for its picture to be turned by a quarter, before anything is decoded.

The library tells the rotation of decoded frames only, but what a video costs must be known from its headers.
"""

from collections.abc import Iterator

_MAX_BOXES = 10_000
_TRACK_ID_AT = {0: 12, 1: 20}
_MATRIX_AT = {0: 40, 1: 52}
"""Offsets inside of a track's header, by its version."""
Box = tuple[bytes, int, int]


def is_sideways(data: bytes, track_id: int) -> bool:
    """Whether width and height change places. False for what is not found, and for files of another make."""
    for _, start, end in _boxes(data, 0, len(data), b"moov"):
        for _, track_start, track_end in _boxes(data, start, end, b"trak"):
            for _, head, head_end in _boxes(data, track_start, track_end, b"tkhd"):
                version = data[head] if head < head_end else -1
                if version in _MATRIX_AT and _number(data, head + _TRACK_ID_AT[version]) == track_id:
                    across, up = (_number(data, head + _MATRIX_AT[version] + 4 * at) for at in (0, 1))
                    return abs(up) > abs(across)
    return False


def _boxes(data: bytes, start: int, end: int, kind: bytes) -> Iterator[Box]:
    """Boxes of one kind between two places: kind, and where the content begins and ends."""
    for _ in range(_MAX_BOXES):
        size, head = int.from_bytes(data[start : start + 4], "big"), 8
        if size == 1:
            size, head = int.from_bytes(data[start + 8 : start + 16], "big"), 16
        size = size or end - start
        if size < head or start + size > end:
            return
        if data[start + 4 : start + 8] == kind:
            yield kind, start + head, start + size
        start += size


def _number(data: bytes, start: int) -> int:
    return int.from_bytes(data[start : start + 4], "big", signed=True)
