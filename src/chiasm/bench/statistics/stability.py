"""Whether a load was stable: under one that the server cannot keep up with, latency grows for as long as it lasts.

The mean of such a run says how long it was, not how fast the server is. So the run is called unstable, and not summed
up.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

_MIN_VALUES = 12
_MAX_PAIRS = 400
_SIGNIFICANT = 3.0
_GROWTH = 0.5


class Stability(msgspec.Struct, frozen=True, kw_only=True):
    """`growth` is what latency gained over the window, as a multiple of its level in the first third.

    `z` is the significance of the trend (Mann and Kendall's test, in standard deviations).
    """

    is_stable: bool
    growth: float
    z: float


def stability(starts_s: Sequence[float], latencies_s: Sequence[float]) -> Stability:
    """Judge latencies by their start times: unstable when they grow by more than half of their first level, beyond
    chance.

    Neither alone is enough: a long run shows trends of no size, and a short one sizes of no meaning. Fewer than 12
    values show nothing and pass.
    """
    if len(starts_s) < _MIN_VALUES:
        return Stability(is_stable=True, growth=0.0, z=0.0)
    order = np.argsort(starts_s, kind="stable")
    times, values = np.asarray(starts_s)[order], np.asarray(latencies_s)[order]
    if times.size > _MAX_PAIRS:  # all pairs of some thousand are too many
        chosen = np.linspace(0, times.size - 1, _MAX_PAIRS).round().astype(int)
        times, values = times[chosen], values[chosen]
    left, right = np.triu_indices(times.size, 1)
    rises = values[right] - values[left]
    gaps = times[right] - times[left]
    apart = gaps > 0
    slope = float(np.median(rises[apart] / gaps[apart])) if apart.any() else 0.0
    level = float(np.median(values[: times.size // 3]))
    growth = slope * float(times[-1] - times[0]) / level if level > 0 else 0.0
    z = _mann_kendall(float(np.sign(rises).sum()), times.size)
    return Stability(is_stable=not (growth > _GROWTH and z > _SIGNIFICANT), growth=growth, z=z)


def _mann_kendall(score: float, count: int) -> float:
    if score == 0:
        return 0.0
    return (score - math.copysign(1, score)) / math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
