"""WebP headers: lossy, lossless and extended files."""

from chiasm.errors import MediaDecodeError
from chiasm.media.picture.bytes import ShortDataError, StepLimit, numbers
from chiasm.media.picture.tiff import exif_orientation

_FIRST_CHUNK = 12
_MAX_CHUNKS = 50_000
_EXIF_FLAG, _ANIMATION_FLAG = 0x08, 0x02


def read_webp(data: bytes | bytearray) -> tuple[int, int, int, bool]:
    """Return stored width and height, the EXIF orientation and whether it is animated.

    EXIF follows the pixels, so of incomplete data the orientation is only what is known so far.
    """
    numbers("30B", data, 0)
    kind = bytes(data[_FIRST_CHUNK : _FIRST_CHUNK + 4])
    body = _FIRST_CHUNK + 8
    if kind == b"VP8 ":
        if data[body + 3 : body + 6] != b"\x9d\x01\x2a":
            raise MediaDecodeError("The webp data has no key frame")
        width, height = numbers("<HH", data, body + 6)
        return width & 0x3FFF, height & 0x3FFF, 1, False
    if kind == b"VP8L":
        (bits,) = numbers("<I", data, body + 1)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, 1, False
    if kind != b"VP8X":
        raise MediaDecodeError("The webp data does not begin with a picture")
    flags = data[body]
    width = int.from_bytes(data[body + 4 : body + 7], "little") + 1
    height = int.from_bytes(data[body + 7 : body + 10], "little") + 1
    orientation = _orientation(data) if flags & _EXIF_FLAG else 1
    return width, height, orientation, bool(flags & _ANIMATION_FLAG)


def _orientation(data: bytes | bytearray) -> int:
    at, chunks = _FIRST_CHUNK, StepLimit(_MAX_CHUNKS)
    try:
        while True:
            chunks.step()
            kind, length = numbers("<II", data, at)
            if kind.to_bytes(4, "little") == b"EXIF":
                block = data[at + 8 : at + 8 + length]
                return exif_orientation(block[6:] if block.startswith(b"Exif\0\0") else block)
            at += 8 + length + (length & 1)
    except ShortDataError:
        return 1
