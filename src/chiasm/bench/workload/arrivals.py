"""When requests leave: times that are fixed by a seed, whatever the server does."""

import random
from typing import Literal

Pattern = Literal["constant", "poisson", "gamma"]


def arrival_times_s(
    pattern: Pattern, rate_per_s: float, count: int, seed: str, *, gamma_shape: float = 1.0
) -> list[float]:
    """`count` start times from 0, in order.

    The same seed gives the same pattern at any rate, stretched. Gaps of 'gamma' have a coefficient of variation of
    1 / sqrt(`gamma_shape`): below 1 is burstier than Poisson, which is 1, and above it more even.
    """
    rng = random.Random(f"{seed}:arrivals")  # noqa: S311 - reproducible, not secret
    at, times = 0.0, []
    for _ in range(count):
        times.append(at / rate_per_s)
        at += _gap(pattern, rng, gamma_shape)
    return times


def _gap(pattern: Pattern, rng: random.Random, gamma_shape: float) -> float:
    """A gap with mean 1."""
    if pattern == "constant":
        return 1.0
    if pattern == "poisson":
        return rng.expovariate(1.0)
    return rng.gammavariate(gamma_shape, 1.0 / gamma_shape)
