"""A set of latencies, summed up."""

from collections.abc import Iterable

import msgspec
import numpy as np


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds, over `count` values. Percentiles are interpolated between the two nearest values."""

    count: int
    mean_ms: float
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float


def distribution(values_s: Iterable[float | None]) -> Distribution | None:
    """Sum up the values that are there; None when there are none."""
    values = np.array([value for value in values_s if value is not None]) * 1e3
    if not values.size:
        return None
    p50, p90, p95, p99 = (float(value) for value in np.percentile(values, (50, 90, 95, 99)))
    return Distribution(
        count=int(values.size),
        mean_ms=float(values.mean()),
        p50_ms=p50,
        p90_ms=p90,
        p95_ms=p95,
        p99_ms=p99,
        max_ms=float(values.max()),
    )
