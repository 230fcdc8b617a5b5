"""Encoded bytes to an upright RGB picture."""

import numpy as np
import simplejpeg  # type: ignore[import-untyped]
from PIL import Image

from chiasm.errors import MediaDecodeError, MediaTooLargeError
from chiasm.media.kernels.base import Pixels, Resizing, StreamedJpeg
from chiasm.media.kernels.registry import kernels
from chiasm.media.picture.codecs import codec_border, open_picture
from chiasm.media.picture.colour import to_rgb
from chiasm.media.picture.header import Header, read_header
from chiasm.media.picture.jpeg import num_scans, without_exif
from chiasm.media.picture.limits import check_header
from chiasm.media.picture.png import bit_depth
from chiasm.media.picture.png_pixels import plain_png
from chiasm.media.picture.png_rows import require_rows
from chiasm.media.picture.room import Room
from chiasm.settings import MediaSettings

Size = tuple[int, int]
MAX_JPEG_SCANS = 100
"""A progressive picture has about ten. Each one is a pass over all pixels, in a few bytes if it must be."""


def decode_picture(data: bytes, settings: MediaSettings) -> Image.Image:
    """Return what `decode_pixels` does as a Pillow image, and raise what it raises."""
    return Image.fromarray(decode_pixels(data, settings))


def decode_announced(
    data: bytes, size: Size, least_size: Size | None, settings: MediaSettings, room: Room | None = None
) -> Pixels:
    """As `decode_pixels`, of a picture that is known to be of this upright size."""
    _announced(data, size)
    return decode_pixels(data, settings, least_size, room)


def decode_resized(data: bytes, size: Size, resizing: Resizing, settings: MediaSettings) -> StreamedJpeg | None:
    """What a resize makes of a picture that is known to be of this upright size; the same bits as one after the other.

    None where that cannot be done in one go, or something is wrong: `decode_announced` does it then, or says what.
    Blocks, checks and raises as that does.
    """
    header = _announced(data, size)
    if header.format != "jpeg" or header.orientation != 1:
        return None
    check_header(header, settings)
    with codec_border(header.format):
        return kernels().resize_jpeg(data, size, resizing)


def _announced(data: bytes, size: Size) -> Header:
    header = read_header(data)
    if (header.width, header.height) != size:
        raise MediaDecodeError(f"The picture is {(header.width, header.height)}, but was announced as {size}")
    return header


def decode_pixels(
    data: bytes, settings: MediaSettings, least_size: Size | None = None, room: Room | None = None
) -> Pixels:
    """Return the picture as RGB, rotated as its EXIF data asks, its first frame if it is animated.

    Blocks, and releases the interpreter's lock while codecs work. Header and limits are checked here again, since a
    worker must not rely on who sent the bytes.

    Args:
        data: The encoded picture.
        settings: Limits and the background.
        least_size: The (width, height) of the upright picture that suffices; JPEG may come smaller than it is then.
        room: Memory that the pixels may lie in; they are good until it is used again.

    Raises:
        UnsupportedMediaError: Not a picture of a supported format.
        MediaTooLargeError: Beyond a limit; nothing was allocated.
        MediaDecodeError: Broken or cut off, or the pixels are of another size than the header states.
    """
    header = read_header(data)
    check_header(header, settings)
    with codec_border(header.format):
        pixels = _decode_quickly(data, header, least_size, room)
        if pixels is None:
            pixels = np.asarray(_decode_with_pillow(data, header, settings.background))
        if header.format != "tiff":  # Pillow itself turns TIFF pictures
            pixels = kernels().turn(pixels, header.orientation)
    if least_size is None and pixels.shape[:2] != (header.height, header.width):
        raise MediaDecodeError(f"The {header.format} data has another size than its header states")
    return pixels


def _decode_quickly(data: bytes, header: Header, least_size: Size | None, room: Room | None) -> Pixels | None:
    """Decode what needs no Pillow; None leaves other kinds, and the verdict on broken data, to it."""
    if header.format == "jpeg":
        return _plain_jpeg(data, header, least_size, room)
    if header.format != "png":
        return None
    pixels = plain_png(data)
    if pixels is None:
        require_rows(data)
    return pixels


def _plain_jpeg(data: bytes, header: Header, least_size: Size | None, room: Room | None) -> Pixels | None:
    """YCbCr and grey; the same bits as Pillow, which uses the same library with a detour.

    Of whatever is not there, Pillow would make grey or the last row once more, as long as an end is marked.
    """
    if num_scans(data) > MAX_JPEG_SCANS:
        raise MediaTooLargeError(f"The JPEG data has more than {MAX_JPEG_SCANS} scans")
    try:
        height, width, space, _ = simplejpeg.decode_jpeg_header(data)
        if (width, height) != (header.stored_width, header.stored_height):
            return None
        if space not in ("YCbCr", "Gray"):
            simplejpeg.decode_jpeg(data, "CMYK" if space in ("CMYK", "YCCK") else "RGB")  # only to find what is missing
            return None
        least = least_size or (0, 0)
        if header.orientation >= 5:
            least = (least[1], least[0])
        # 0 stands for all of it, and so does what is larger than the picture
        least_width, least_height = least if least[0] <= width and least[1] <= height else (0, 0)
        place = None if room is None or least_size is not None else room.pixels(width, height)
        pixels: Pixels = simplejpeg.decode_jpeg(
            data, "RGB", min_width=least_width, min_height=least_height, buffer=place
        )
    except ValueError as error:
        if "premature end" in str(error).lower():
            raise MediaDecodeError("The jpeg data is cut off: it holds less than its header says") from None
        return None
    return pixels


def _decode_with_pillow(data: bytes, header: Header, background: tuple[int, int, int]) -> Image.Image:
    is_png = header.format == "png"
    with open_picture(without_exif(data) if header.format == "jpeg" else data, header.format) as image:
        stored = (header.stored_width, header.stored_height)
        # Two parsers must agree on the size before the one that allocates it goes on; Pillow states TIFF upright.
        if image.size != ((header.width, header.height) if header.format == "tiff" else stored):
            raise MediaDecodeError(f"The {header.format} header contradicts itself about the size")
        image.load()
        return to_rgb(image, background, bit_depth(data) if is_png else None)
