"""Two servers that got the same requests: the ratio of their means, and how sure it is."""

from collections.abc import Sequence

import numpy as np

from chiasm.bench.statistics.intervals import Interval

_NUM_RESAMPLES = 2000
_MAX_BLOCK = 8
_MIN_BLOCKS = 8
_MIN_PAIRS = 4
"""Of fewer, resampling says nothing: a single one would have an interval of no width."""

Runs = Sequence[Sequence[float]]
"""Values of each run, in order of time."""


def mean_interval(runs: Runs, seed: int = 0) -> Interval | None:
    """The mean over all runs; None when there are no values."""
    return _interval(runs, [[1.0] * len(run) for run in runs], seed)


def ratio_interval(ours: Runs, theirs: Runs, seed: int = 0) -> Interval | None:
    """Mean of ours over mean of theirs, value by value of the same requests; None where there are hardly any."""
    return _interval(ours, theirs, seed) if sum(map(len, ours)) >= _MIN_PAIRS else None


def _interval(over: Runs, under: Runs, seed: int) -> Interval | None:
    """A ratio of sums with its 95 % bootstrap interval, resampling blocks of successive requests.

    Neighbours queue behind each other, so that single requests would make it too narrow; runs are too few.
    """
    count = sum(map(len, over))
    if not count:
        return None
    size = max(1, min(_MAX_BLOCK, count // _MIN_BLOCKS))
    sums = np.array([_blocks(over, size), _blocks(under, size)])
    rng = np.random.default_rng(seed)
    chosen = rng.integers(0, sums.shape[1], (_NUM_RESAMPLES, sums.shape[1]))
    found = sums[0][chosen].sum(axis=1) / sums[1][chosen].sum(axis=1)
    low, high = np.percentile(found, (2.5, 97.5))
    return Interval(value=float(sums[0].sum() / sums[1].sum()), low=float(low), high=float(high), count=count)


def _blocks(runs: Runs, size: int) -> list[float]:
    return [sum(run[start : start + size]) for run in runs for start in range(0, len(run), size)]
