"""How a serving process keeps memory: what one request gives back is kept for the next."""

import ctypes
import gc
from contextlib import suppress

_MALLOC_TRIM_THRESHOLD = -1  # names of glibc's malloc.h
_MALLOC_MMAP_THRESHOLD = -3
_KEPT_BYTES = 512 * 2**20  # what a few dozen requests with large pictures hold at once
_LARGE_BYTES = 32 * 2**20  # the most that glibc takes
_COLLECT_EVERY = 10_000


def settle() -> None:
    """Call when everything is loaded: keep it out of garbage collections, and keep freed memory for what comes.

    Without this the pages of every picture's megabytes would be given back and faulted in anew for each request.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_EVERY, 20, 50)
    with suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(_MALLOC_MMAP_THRESHOLD, _LARGE_BYTES)
        libc.mallopt(_MALLOC_TRIM_THRESHOLD, _KEPT_BYTES)
