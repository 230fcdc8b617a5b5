"""Which implementation this machine has."""

import functools
import logging

from chiasm.media.kernels.base import Kernels
from chiasm.media.kernels.plain import PlainKernels

logger = logging.getLogger(__name__)

BUILD_HINT = (
    "Install a C compiler (GCC 8 or newer) and Python's headers (Debian: apt install gcc python3-dev), and then Chiasm "
    "once more"
)
JPEG_HINT = (
    "Install the header of libjpeg-turbo (Debian: apt install libjpeg-dev), and then Chiasm once more; a header for "
    "another version of libjpeg's interface than Pillow's, as Ubuntu has it, does not help"
)


@functools.cache
def kernels() -> Kernels:
    """The loops in C where they were built, else Pillow and numpy, which take several times as long."""
    try:
        from chiasm.media.kernels.native import STREAMS_JPEG, NativeKernels
    except ImportError:
        logger.info("Pictures are prepared without compiled code. %s", BUILD_HINT)
        return PlainKernels()
    if not STREAMS_JPEG:
        logger.info("JPEG is decoded whole before it is resized. %s", JPEG_HINT)
    return NativeKernels()
