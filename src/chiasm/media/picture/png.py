"""PNG headers: a walk over the chunks."""

from chiasm.errors import MediaDecodeError
from chiasm.media.picture.bytes import ShortDataError, StepLimit, numbers
from chiasm.media.picture.tiff import exif_orientation

_FIRST_CHUNK = 8
_MAX_CHUNKS = 50_000


def read_png(data: bytes | bytearray) -> tuple[int, int, int, bool]:
    """Return stored width and height, the EXIF orientation and whether it is animated.

    EXIF may follow the pixels, so of incomplete data the orientation is only what is known so far.
    """
    width, height = numbers(">II", data, _FIRST_CHUNK + 8)
    if data[_FIRST_CHUNK + 4 : _FIRST_CHUNK + 8] != b"IHDR":
        raise MediaDecodeError("The png data does not begin with its header")
    orientation, is_animated, at = 1, False, _FIRST_CHUNK
    chunks = StepLimit(_MAX_CHUNKS)
    try:
        while True:
            chunks.step()
            length, kind = numbers(">II", data, at)
            name = kind.to_bytes(4, "big")
            if name == b"IEND":
                break
            if name == b"acTL":
                (num_frames,) = numbers(">I", data, at + 8)
                is_animated = num_frames > 1
            if name == b"eXIf":
                orientation = exif_orientation(data[at + 8 : at + 8 + length])
            at += 12 + length
    except ShortDataError:
        pass  # cut off, or only a prefix: the decoder finds the former
    return width, height, orientation, is_animated


def bit_depth(data: bytes | bytearray) -> int:
    """Return the bits per sample as stored."""
    return data[_FIRST_CHUNK + 16]
