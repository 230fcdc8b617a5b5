"""Whether a PNG holds as many rows as its header says. Pillow leaves the others black, without a word."""

from isal import isal_zlib

from chiasm.errors import MediaDecodeError
from chiasm.media.picture.bytes import ShortDataError, StepLimit, numbers

_SIGNATURE_BYTES = 8
_SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Of one pixel, by the header's number for the kind of colours."""
_WHOLE = ((0, 0, 1, 1),)
_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""First column and row of each pass, and the steps between its columns and rows."""
_PIECE_BYTES = 2**20
_MAX_CHUNKS = 100_000


def require_rows(data: bytes) -> None:
    """Refuse pixels that end, in good order, before the last row; other damage is found by whoever decodes them.

    Raises:
        MediaDecodeError: There are fewer rows than stated.
    """
    try:
        width, height, depth, colours, _, _, interlace = numbers(">IIBBBBB", data, 16)
        stated = _num_row_bytes(width, height, depth * _SAMPLES.get(colours, 0), _ADAM7 if interlace else _WHOLE)
        found, is_ended = _inflated(data, stated)
    except (ShortDataError, isal_zlib.IsalError):  # type: ignore[misc]  # the stubs call the latter an instance
        return
    if is_ended and found < stated:
        raise MediaDecodeError("The png data is cut off: it holds fewer rows than its header says")


def _num_row_bytes(width: int, height: int, num_bits: int, passes: tuple[tuple[int, int, int, int], ...]) -> int:
    """All rows, each with the byte that names its filter."""
    total = 0
    for left, top, across, down in passes:
        columns, rows = -(-max(width - left, 0) // across), -(-max(height - top, 0) // down)
        total += (1 + -(-columns * num_bits // 8)) * rows if columns else 0
    return total


def _inflated(data: bytes, most: int) -> tuple[int, bool]:
    """How many bytes there are, counted no further than `most`, and whether the stream says that these are all."""
    inflating, found = isal_zlib.decompressobj(), 0
    for part in _data_chunks(data):
        rest: bytes | memoryview = part
        while rest and found < most and not inflating.eof:
            found += len(inflating.decompress(rest, min(_PIECE_BYTES, most - found)))
            rest = inflating.unconsumed_tail
        if found >= most or inflating.eof:
            break
    return found, inflating.eof


def _data_chunks(data: bytes) -> list[memoryview]:
    parts, at, steps = [], _SIGNATURE_BYTES, StepLimit(_MAX_CHUNKS)
    while at + 8 <= len(data):
        steps.step()
        length, _ = numbers(">II", data, at)
        kind = data[at + 4 : at + 8]
        if kind == b"IDAT":
            parts.append(memoryview(data)[at + 8 : at + 8 + length])
        if kind == b"IEND":
            break
        at += 12 + length
    return parts
