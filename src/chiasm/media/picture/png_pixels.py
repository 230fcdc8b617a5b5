"""The everyday PNG without Pillow: eight bits, RGB or opaque RGBA, not interlaced.

Two thirds of Pillow's time for a large screenshot go into inflating it with a slower library and through its own
four-byte pixels. Whatever is not everyday, or wrong in any way, is left to Pillow and its verdict.
"""

from isal import isal_zlib

from chiasm.media.kernels.base import Pixels
from chiasm.media.kernels.registry import kernels
from chiasm.media.picture.bytes import ShortDataError, StepLimit, numbers

IsalError: type[Exception] = isal_zlib.IsalError  # type: ignore[assignment]  # the stubs call it an instance
_SIGNATURE_BYTES = 8
_HEADER = b"IHDR"
_DATA = b"IDAT"
_END = b"IEND"
_CHANNELS = {2: 3, 6: 4}
_FOR_PILLOW = frozenset({b"tRNS", b"acTL", b"zTXt"})
"""Transparent colours, animation, and texts that it inflates to judge them."""
_MAX_PROFILE_BYTES = 2**20
_MAX_CHUNKS = 100_000


def plain_png(data: bytes) -> Pixels | None:
    """Return the pixels; None when the picture is not of this kind, broken or transparent."""
    try:
        (kind,) = numbers(">I", data, 12)
        width, height, depth, colours, compression, filtering, interlace = numbers(">IIBBBBB", data, 16)
        channels = _CHANNELS.get(colours)
        if kind != int.from_bytes(_HEADER, "big") or channels is None or depth != 8:
            return None
        if compression or filtering or interlace:
            return None
        chunks = _deflated(data)
    except ShortDataError:
        return None
    rows = None if chunks is None else _inflated(chunks, height * (1 + width * channels))
    return None if rows is None else kernels().unfilter(rows, (width, height), channels)


def _deflated(data: bytes) -> bytes | None:
    """All data chunks in one; None when they are not in one run, or another chunk is damaged or matters."""
    at, steps = _SIGNATURE_BYTES, StepLimit(_MAX_CHUNKS)
    parts: list[memoryview] = []
    is_after = False
    while True:
        steps.step()
        length, _ = numbers(">II", data, at)
        kind = data[at + 4 : at + 8]
        if kind == _END:
            return b"".join(parts)
        content = memoryview(data)[at + 8 : at + 8 + length]
        if (kind == _DATA and is_after) or _is_for_pillow(kind, content):
            return None
        if kind == _DATA:
            parts.append(content)
        elif numbers(">I", data, at + 8 + length)[0] != isal_zlib.crc32(content, isal_zlib.crc32(kind)):
            return None
        is_after = bool(parts) and kind != _DATA
        at += 12 + length


def _is_for_pillow(kind: bytes, content: memoryview) -> bool:
    if kind in _FOR_PILLOW:
        return True
    if kind not in (b"iTXt", b"iCCP"):
        return False
    _, _, rest = bytes(content).partition(b"\0")
    if kind == b"iTXt":
        return rest[:1] != b"\0"  # compressed
    try:
        profile = isal_zlib.decompressobj().decompress(rest[1:], _MAX_PROFILE_BYTES + 1)
    except IsalError:
        return True
    return len(profile) > _MAX_PROFILE_BYTES


def _inflated(chunks: bytes, num_bytes: int) -> bytes | None:
    """Exactly so many bytes, whose checksum is right; never more memory than that."""
    inflating = isal_zlib.decompressobj()
    try:
        rows = inflating.decompress(chunks, num_bytes)
        rest = b"" if inflating.eof else inflating.decompress(inflating.unconsumed_tail, 1)
    except IsalError:
        return None
    return rows if inflating.eof and len(rows) == num_bytes and not rest else None
