"""A picture's facts from its header, before any raster is allocated."""

from typing import Annotated

import msgspec
from msgspec import Meta

from chiasm.errors import MediaDecodeError
from chiasm.media.picture.bmp import read_bmp
from chiasm.media.picture.bytes import ShortDataError
from chiasm.media.picture.codecs import codec_border, open_picture
from chiasm.media.picture.gif import read_gif
from chiasm.media.picture.jpeg import read_jpeg
from chiasm.media.picture.png import read_png
from chiasm.media.picture.sniff import MIN_SNIFF_BYTES, sniff
from chiasm.media.picture.tiff import read_tiff, upright_or
from chiasm.media.picture.webp import read_webp

_ORIENTATION_TAG = 274


class Header(msgspec.Struct, frozen=True, kw_only=True, tag="picture_header"):
    """Facts of one picture. The stored size is before EXIF rotation; `width` and `height` are after it."""

    format: Annotated[str, Meta(max_length=16)]
    stored_width: Annotated[int, Meta(ge=1)]
    stored_height: Annotated[int, Meta(ge=1)]
    orientation: Annotated[int, Meta(ge=1, le=8)] = 1
    is_animated: bool = False

    @property
    def width(self) -> int:
        """Pixels from left to right of the upright picture."""
        return self.stored_height if self.orientation >= 5 else self.stored_width

    @property
    def height(self) -> int:
        """Pixels from top to bottom of the upright picture."""
        return self.stored_width if self.orientation >= 5 else self.stored_height


def read_header(data: bytes | bytearray) -> Header:
    """Return the facts of complete data.

    Raises:
        UnsupportedMediaError: Not a picture of a supported format.
        MediaDecodeError: Empty, cut off inside the header, or malformed.
    """
    try:
        return _read(data)
    except ShortDataError:
        cause = "ends inside its header" if data else "is empty"
        raise MediaDecodeError(f"The data {cause}") from None


def peek_header(prefix: bytes | bytearray) -> Header | None:
    """Return the facts from the first bytes of a picture, None while they do not suffice. Cheap for every format.

    An orientation that follows the pixels is not known yet.
    """
    if len(prefix) < MIN_SNIFF_BYTES or sniff(prefix) == "avif":  # AVIF is parsed by its library, from complete data
        return None
    try:
        return _read(prefix)
    except ShortDataError:
        return None


def _read(data: bytes | bytearray) -> Header:
    kind = sniff(data)
    orientation, is_animated = 1, False
    if kind == "jpeg":
        width, height, orientation = read_jpeg(data)
    elif kind == "png":
        width, height, orientation, is_animated = read_png(data)
    elif kind == "webp":
        width, height, orientation, is_animated = read_webp(data)
    elif kind == "gif":
        width, height, is_animated = read_gif(data)
    elif kind == "bmp":
        width, height = read_bmp(data)
    elif kind == "tiff":
        width, height, orientation = read_tiff(data)
    else:
        width, height, orientation, is_animated = _read_avif(bytes(data))
    if width < 1 or height < 1:
        raise MediaDecodeError(f"The {kind} header states a size of {width} x {height}")
    return Header(
        format=kind, stored_width=width, stored_height=height, orientation=orientation, is_animated=is_animated
    )


def _read_avif(data: bytes) -> tuple[int, int, int, bool]:
    with codec_border("avif"), open_picture(data, "avif") as image:
        orientation = image.getexif().get(_ORIENTATION_TAG, 1)
        return *image.size, upright_or(int(orientation)), getattr(image, "n_frames", 1) > 1
