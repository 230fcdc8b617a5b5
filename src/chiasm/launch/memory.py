"""How a serving process keeps memory: what one request gives back is kept for the next."""

import ctypes
import gc
from contextlib import suppress

from chiasm.observability.memory import memory_limit_bytes
from chiasm.settings.process import is_set_by_hand

_MALLOC_TRIM_THRESHOLD = -1  # names of glibc's malloc.h
_MALLOC_MMAP_THRESHOLD = -3
_KEPT_BYTES = 512 * 2**20  # what a few dozen requests with large pictures hold at once
_LEAST_KEPT_BYTES = 64 * 2**20
_KEPT_PART = 16  # of all memory, where that is little
_LARGE_BYTES = 32 * 2**20  # the most that glibc takes
_COLLECT_EVERY = 10_000


def settle() -> None:
    """Call when everything is loaded: keep it out of garbage collections, and keep freed memory for what comes.

    Without this the pages of every picture's megabytes would be given back and faulted in anew for each request. How
    much is kept is left to `MALLOC_TRIM_THRESHOLD_` where somebody has set it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_EVERY, 20, 50)
    with suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(_MALLOC_MMAP_THRESHOLD, _LARGE_BYTES)
        if not is_set_by_hand("MALLOC_TRIM_THRESHOLD_"):
            libc.mallopt(_MALLOC_TRIM_THRESHOLD, kept_bytes(memory_limit_bytes()))


def kept_bytes(limit_bytes: int) -> int:
    """How much freed memory to keep where there is so much of it in all."""
    return min(_KEPT_BYTES, max(_LEAST_KEPT_BYTES, limit_bytes // _KEPT_PART))
