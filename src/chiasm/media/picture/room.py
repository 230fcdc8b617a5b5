"""Memory for the pixels of one picture after the other.

The system clears what it hands out: of decoding a JPEG of 12 megapixels, that is a tenth of the time.
"""

import numpy as np
from numpy.typing import NDArray

from chiasm.media.kernels.base import Pixels

MAX_KEPT_BYTES = 40 * 2**20


class Room:
    """Of one thread. It grows to what pictures need, at most `MAX_KEPT_BYTES`; larger ones get memory of their own."""

    def __init__(self) -> None:
        self._kept: NDArray[np.uint8] = np.empty(0, np.uint8)

    @property
    def num_bytes(self) -> int:
        """What is kept."""
        return self._kept.nbytes

    def pixels(self, width: int, height: int) -> Pixels:
        """Return RGB pixels of any content; those returned before must not be used any more."""
        num_bytes = 3 * width * height
        if num_bytes > MAX_KEPT_BYTES:
            return np.empty((height, width, 3), np.uint8)
        if num_bytes > self._kept.nbytes:
            self._kept = np.empty(num_bytes, np.uint8)
        return self._kept[:num_bytes].reshape(height, width, 3)

    def owns(self, array: NDArray[np.generic]) -> bool:
        """Whether an array may lie in this memory."""
        return np.may_share_memory(array, self._kept)
