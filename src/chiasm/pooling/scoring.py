"""Scores of pairs from embeddings that are there already."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


def cosine(first: Array, second: Array) -> np.float32:
    """Similarity of two embeddings [width], both of length one."""
    return np.float32(np.dot(first, second))


def max_sim(query: Array, document: Array) -> np.float32:
    """Late interaction: for each query token [tokens, width] its best match among the document's, summed."""
    return np.float32((query @ document.T).max(axis=1).sum(dtype=np.float32))
