"""The search for goodput: the highest rate that still meets the objectives."""

from collections.abc import Awaitable, Callable

import msgspec

from chiasm.bench.metrics.goodput import ATTAINMENT
from chiasm.errors import EngineError

_MAX_DOUBLINGS = 24
_TOLERANCE = 0.05


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One rate that was tried. `attainment` is that of all attempted requests, `by_class` of each class's."""

    rate_per_s: float
    attainment: float
    is_stable: bool
    by_class: dict[str, float] = {}

    @property
    def is_good(self) -> bool:
        """Whether the rate is within goodput."""
        return self.is_stable and self.attainment >= ATTAINMENT


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """The highest rate that was good, and the lowest above it that was not. 0 when none was; the trials are the
    curve.
    """

    goodput_per_s: float
    first_bad_per_s: float
    trials: tuple[Trial, ...]


async def find_goodput(
    evaluate: Callable[[float], Awaitable[Trial]], start_per_s: float, *, tolerance: float = _TOLERANCE
) -> Goodput:
    """Bracket by doubling or halving, then bisect until the bracket is narrower than `tolerance` of it.

    `evaluate` runs a cell and raises when the client was the limit: no goodput can be told from such a cell.
    """
    trials: list[Trial] = []

    async def is_good(rate_per_s: float) -> bool:
        trials.append(await evaluate(rate_per_s))
        return trials[-1].is_good

    good, bad = await _bracket(is_good, start_per_s)
    while good > 0 and bad - good > tolerance * bad:
        middle = (good * bad) ** 0.5
        if await is_good(middle):
            good = middle
        else:
            bad = middle
    ordered = tuple(sorted(trials, key=lambda trial: trial.rate_per_s))
    return Goodput(goodput_per_s=good, first_bad_per_s=bad, trials=ordered)


async def _bracket(is_good: Callable[[float], Awaitable[bool]], rate_per_s: float) -> tuple[float, float]:
    """A good rate, 0 if there is none, and a bad one above it."""
    if await is_good(rate_per_s):
        for _ in range(_MAX_DOUBLINGS):
            if not await is_good(2 * rate_per_s):
                return rate_per_s, 2 * rate_per_s
            rate_per_s *= 2
        raise EngineError(
            f"{rate_per_s:g} requests per second still meet the objectives", hint="Start at a higher --rate"
        )
    for _ in range(_MAX_DOUBLINGS // 3):
        if await is_good(rate_per_s / 2):
            return rate_per_s / 2, rate_per_s
        rate_per_s /= 2
    return 0.0, rate_per_s
