"""The pixels of everyday JPEGs, all of them or a part, by a decoder of ours in C.

It takes one scan of Huffman codes, grey or YCbCr with 4:4:4, 4:2:2 or 4:2:0, in perfect order, and gives the bits of
libjpeg-turbo. Everything else it leaves to that, and with it every verdict on broken data.
"""

from chiasm.media.kernels.base import Part, Pixels

try:
    from chiasm.media.picture import _jpeg
except ImportError:  # built without a C compiler
    _jpeg = None  # type: ignore[assignment]


def decode_jpeg_part(data: bytes, size: tuple[int, int], part: Part, out: Pixels) -> bool:
    """Write a part of a picture of this (width, height) as it is stored; False leaves the picture to others.

    All of the data is read, and must be in order, whatever the part is. Releases the interpreter's lock.

    Args:
        data: The encoded picture.
        size: As its header states it.
        out: [height, width, 3] of the part, contiguous.
    """
    return _jpeg is not None and _jpeg.decode(data, *size, *part, out)
