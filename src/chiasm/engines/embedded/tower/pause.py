"""Where a batch of pictures stops for something shorter: asked for by any thread, granted between two pieces."""

from collections.abc import Callable

import numpy as np


class Pause:
    """A flag that the tower in C reads without the interpreter, so that looking costs nothing while nobody asks.

    Attributes:
        give_way: Called by the tower on its caller's thread, after each piece while the flag is up.
    """

    def __init__(self, give_way: Callable[[], object]) -> None:
        self.give_way = give_way
        self._asked = np.zeros(1, np.int32)

    @property
    def address(self) -> int:
        """Of the flag, a 32-bit integer; good while this object lives."""
        return self._asked.ctypes.data

    def ask(self) -> None:
        """Put the flag up. From any thread."""
        self._asked[0] = 1

    def clear(self) -> None:
        """Take it down, before looking for what it was put up for."""
        self._asked[0] = 0
