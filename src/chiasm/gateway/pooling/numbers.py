"""Arrays in bodies."""

from typing import Any

import numpy as np
import pybase64
from numpy.typing import NDArray

from chiasm.pooling.ranking import reported


def in_base64(values: NDArray[np.float32]) -> str:
    """Little-endian float32, row by row."""
    return pybase64.b64encode(values.astype("<f4", copy=False).tobytes()).decode("ascii")


def in_lists(values: NDArray[np.float32]) -> Any:
    """Numbers in nested lists; what is no number becomes null, as JSON has none."""
    if np.isfinite(values).all():
        return values.tolist()
    if values.ndim == 1:
        return [reported(value) for value in values.tolist()]
    return [in_lists(row) for row in values]
