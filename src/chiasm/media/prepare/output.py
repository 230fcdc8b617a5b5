"""Where the bytes that a preparer makes for the encoder lie: in new memory, or where the thread's caller says."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

Place = Callable[[tuple[int, ...]], NDArray[np.uint8] | None]
"""Bytes of this shape with any content; None where there is no room for them."""
_of_thread = threading.local()


@contextmanager
def outputs_in(place: Place) -> Iterator[None]:
    """Let this thread's preparers write their results there, as far as there is room."""
    _of_thread.place = place
    try:
        yield
    finally:
        del _of_thread.place


def new_output(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return memory of any content, contiguous, for a result that the preparer fills whole."""
    place: Place | None = getattr(_of_thread, "place", None)
    found = None if place is None else place(shape)
    return np.empty(shape, np.uint8) if found is None else found
