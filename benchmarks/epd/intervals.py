"""Ratios of pairs with their intervals, and what they say about a limit."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_NUM_RESAMPLES = 2000

Pair = tuple[float, float]
Samples = NDArray[np.float64]
Statistic = Callable[[Samples], Samples]
"""Of samples [samples, pairs, 2], one number each."""


def interval(pairs: Sequence[Pair], statistic: Statistic, block: int = 1) -> dict[str, float]:
    """A statistic with its 95 % interval from resampling the pairs.

    Requests that run beside each other wait for each other: they are resampled in blocks of so many successive ones.
    """
    array, rng = np.asarray(pairs, np.float64), np.random.default_rng(0)
    count = max(1, len(array) // block)
    blocks = np.array_split(array, count)
    found = np.concatenate([statistic(_resampled(blocks, rng)) for _ in range(_NUM_RESAMPLES)])
    low, high = np.quantile(found, [0.025, 0.975])
    return {"value": float(statistic(array[None])[0]), "low": float(low), "high": float(high), "count": len(pairs)}


def _resampled(blocks: Sequence[Samples], rng: np.random.Generator) -> Samples:
    chosen = rng.integers(0, len(blocks), len(blocks))
    return np.concatenate([blocks[place] for place in chosen])[None]


def ratio_of_p95(samples: Samples) -> Samples:
    """95th percentile of the first over that of the second of each pair."""
    return np.quantile(samples[..., 0], 0.95, axis=1) / np.quantile(samples[..., 1], 0.95, axis=1)


def ratio_of_means(samples: Samples) -> Samples:
    """Mean of the first over mean of the second of each pair."""
    return samples[..., 0].mean(axis=1) / samples[..., 1].mean(axis=1)


def ratio_of_medians(samples: Samples) -> Samples:
    """Median of the first over median of the second of each pair."""
    return np.median(samples[..., 0], axis=1) / np.median(samples[..., 1], axis=1)


def verdict(what: str, ratio: dict[str, Any], limit: float) -> str:
    """Kept when all of the interval is within the limit, broken when none is, else open."""
    outcome = "kept" if ratio["high"] <= limit else "broken" if ratio["low"] > limit else "open"
    return (
        f"{what} at most {limit:g} times: {outcome} ({ratio['value']:.2f}, {ratio['low']:.2f} to {ratio['high']:.2f})"
    )
