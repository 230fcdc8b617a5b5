"""Encoded bytes to an upright RGB picture."""

import simplejpeg  # type: ignore[import-untyped]
from PIL import Image

from chiasm.errors import MediaDecodeError, MediaTooLargeError
from chiasm.media.picture.codecs import codec_border, open_picture
from chiasm.media.picture.colour import to_rgb
from chiasm.media.picture.header import Header, read_header
from chiasm.media.picture.jpeg import without_exif
from chiasm.media.picture.limits import check_header
from chiasm.media.picture.png import bit_depth
from chiasm.settings import MediaSettings

MAX_JPEG_SCANS = 100
"""A progressive picture has about ten. Each one is a pass over all pixels, in a few bytes if it must be."""

_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode_picture(data: bytes, settings: MediaSettings) -> Image.Image:
    """Return the picture as RGB, rotated as its EXIF data asks, its first frame if it is animated.

    Blocks, and releases the interpreter's lock while codecs work. Header and limits are checked here again, since a
    worker must not rely on who sent the bytes.

    Raises:
        UnsupportedMediaError: Not a picture of a supported format.
        MediaTooLargeError: Beyond a limit; nothing was allocated.
        MediaDecodeError: Broken or cut off, or the pixels are of another size than the header states.
    """
    header = read_header(data)
    check_header(header, settings)
    with codec_border(header.format):
        image = _decode_plain_jpeg(data, header) or _decode_with_pillow(data, header, settings.background)
        if header.format != "tiff" and header.orientation != 1:  # Pillow itself turns TIFF pictures
            image = image.transpose(_TRANSPOSE[header.orientation])
    if image.size != (header.width, header.height):
        raise MediaDecodeError(f"The {header.format} data has another size than its header states")
    return image


def _decode_plain_jpeg(data: bytes, header: Header) -> Image.Image | None:
    """Decode YCbCr and grey JPEG; None leaves other colour spaces, and the verdict on broken data, to Pillow."""
    if header.format != "jpeg":
        return None
    if data.count(b"\xff\xda") > MAX_JPEG_SCANS:
        raise MediaTooLargeError(f"The JPEG data has more than {MAX_JPEG_SCANS} scans")
    try:
        height, width, space, _ = simplejpeg.decode_jpeg_header(data)
        if space not in ("YCbCr", "Gray") or (width, height) != (header.stored_width, header.stored_height):
            return None
        return Image.fromarray(simplejpeg.decode_jpeg(data, "RGB"))
    except ValueError:
        return None


def _decode_with_pillow(data: bytes, header: Header, background: tuple[int, int, int]) -> Image.Image:
    is_png = header.format == "png"
    with open_picture(without_exif(data) if header.format == "jpeg" else data, header.format) as image:
        stored = (header.stored_width, header.stored_height)
        # Two parsers must agree on the size before the one that allocates it goes on; Pillow states TIFF upright.
        if image.size != ((header.width, header.height) if header.format == "tiff" else stored):
            raise MediaDecodeError(f"The {header.format} header contradicts itself about the size")
        image.load()
        return to_rgb(image, background, bit_depth(data) if is_png else None)
