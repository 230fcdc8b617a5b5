"""What is done with a model's raw numbers before they leave: all in float32, on arrays."""

import numpy as np
from numpy.typing import NDArray

from chiasm.pooling.model_files import Activation

Array = NDArray[np.float32]


def cut(rows: Array, dimensions: int | None) -> Array:
    """The leading values of embeddings [..., width], as Matryoshka training orders them. Normalize afterwards."""
    return rows if dimensions is None else rows[..., :dimensions]


def normalized(rows: Array) -> Array:
    """Rows [..., width] of length one; a row of zeros stays as it is."""
    lengths = np.sqrt(np.sum(np.square(rows), axis=-1, keepdims=True, dtype=np.float32))
    return np.divide(rows, np.maximum(lengths, np.float32(1e-12)), dtype=np.float32)


def calibrated(logits: Array, mean: float, sigma: float) -> Array:
    """(logit - mean) / sigma, before any activation; the identity for 0 and 1."""
    if mean == 0.0 and sigma == 1.0:
        return logits
    return (logits - np.float32(mean)) / np.float32(sigma)


def activated(logits: Array, activation: Activation) -> Array:
    """Logits [..., labels] as probabilities or scores."""
    if activation == "sigmoid":
        return _sigmoid(logits)
    if activation == "softmax":
        return _softmax(logits)
    assert activation == "identity", f"{activation} is no activation of logits"
    return logits


def _sigmoid(logits: Array) -> Array:
    """Exact at both ends, without overflow."""
    small = np.exp(-np.abs(logits), dtype=np.float32)
    return np.where(logits >= 0, 1 / (1 + small), small / (1 + small)).astype(np.float32)


def _softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True), dtype=np.float32)
    total: Array = powers / powers.sum(axis=-1, keepdims=True, dtype=np.float32)
    return total
