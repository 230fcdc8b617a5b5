"""Confidence intervals by resampling."""

from collections.abc import Sequence

import msgspec
import numpy as np

_NUM_RESAMPLES = 2000


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A mean with its 95 % bootstrap interval over `count` repeats."""

    value: float
    low: float
    high: float
    count: int


def bootstrap(values: Sequence[float], seed: int = 0) -> Interval:
    """The interval of the mean of values that are independent: one for each repeat.

    Requests of one run are not independent (they queue behind each other), so theirs would be too narrow.
    """
    sample = np.asarray(values, dtype=np.float64)
    rng = np.random.default_rng(seed)
    means = sample[rng.integers(0, sample.size, (_NUM_RESAMPLES, sample.size))].mean(axis=1)
    low, high = np.percentile(means, (2.5, 97.5))
    return Interval(value=float(sample.mean()), low=float(low), high=float(high), count=int(sample.size))
