"""The one place that opens pictures with Pillow and the border its errors stop at.

Plugins are called directly, chosen by the sniffed format: no other plugin is ever tried, and Pillow's own size limits,
which work by process-wide warnings, give way to `limits.check_header`.

What these plugins warn of in broken files is silenced for the whole process: the texts vary with the data, so a caller
could fill logs and the interpreter's memory of warnings already shown. Such files decode, or raise.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO

from PIL.AvifImagePlugin import AvifImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from chiasm.errors import MediaDecodeError, MediaError, MediaTooLargeError

warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.(Png|Tiff)ImagePlugin")

_PLUGINS: dict[str, Callable[[BytesIO], ImageFile]] = {
    "jpeg": JpegImageFile,  # multi-picture files too: their first picture
    "png": PngImageFile,
    "webp": WebPImageFile,
    "gif": GifImageFile,
    "bmp": BmpImageFile,
    "tiff": TiffImageFile,
    "avif": AvifImageFile,
}


def open_picture(data: bytes, kind: str) -> ImageFile:
    """Open, without decoding, a picture of a sniffed format."""
    return _PLUGINS[kind](BytesIO(data))


@contextmanager
def codec_border(kind: str) -> Iterator[None]:
    """Turn whatever a codec raises on hostile data into a `MediaError`, without quoting the data."""
    try:
        yield
    except MediaError:
        raise
    except MemoryError as error:
        raise MediaTooLargeError(f"Decoding the {kind} data takes more memory than there is") from error
    except Exception as error:  # plugins raise nearly every built-in error on broken data
        cause = "cut off" if "truncat" in str(error).lower() else "broken"
        raise MediaDecodeError(f"The {kind} data is {cause}") from error
