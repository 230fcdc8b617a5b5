"""Which implementation this machine has."""

import functools
import logging

from chiasm.media.kernels.base import Kernels
from chiasm.media.kernels.plain import PlainKernels

logger = logging.getLogger(__name__)


@functools.cache
def kernels() -> Kernels:
    """The loops in C where they were built, else Pillow and numpy, which take several times as long."""
    try:
        from chiasm.media.kernels.native import NativeKernels
    except ImportError:
        logger.info("Pictures are prepared without compiled code; install a C compiler and Chiasm once more for it")
        return PlainKernels()
    return NativeKernels()
