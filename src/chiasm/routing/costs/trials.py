"""When a worker that encoded slowly is tried again."""

from collections.abc import Iterator

import msgspec

from chiasm.routing.costs.line import Coefficients
from chiasm.routing.lru import Lru

_LONGEST_PAUSE = 16.0
_HALF = 0.5


class _Look(msgspec.Struct, frozen=True):
    """When a worker was last seen encoding, and for how long it is left alone after that, if it is slow."""

    at_s: float
    pause_s: float


class Trials:
    """What was slow once, as while it warmed up, is not asked and so never seen to be quick: after a pause, it may be.

    Hope starts at what the fleet takes on average, and halves with each further pause. Who disappoints is left alone
    twice as long, up to sixteen pauses.
    """

    def __init__(self, pause_s: float, max_workers: int) -> None:
        """`pause_s` of 0: nobody is tried again."""
        self._pause_s = pause_s
        self._looks: Lru[_Look] = Lru(max_workers)

    def see(self, worker: str, now_s: float, *, is_slow: bool) -> None:
        """A worker encoded; `is_slow` is said of it as it is known from now on."""
        last, pause_s = self._looks.get(worker), self._pause_s
        if last is not None and is_slow:
            factor = 2.0 if now_s - last.at_s >= last.pause_s else 1.0
            pause_s = min(factor * last.pause_s, _LONGEST_PAUSE * self._pause_s)
        self._looks.put(worker, _Look(now_s, pause_s))

    def is_due(self, worker: str, now_s: float) -> bool:
        """Whether a worker, should it be slow, was left alone for long enough."""
        look = self._looks.peek(worker)
        return self._pause_s > 0.0 and look is not None and now_s - look.at_s >= look.pause_s

    def hopes(self, average: Coefficients, now_s: float) -> Iterator[tuple[str, Coefficients]]:
        """Of workers left alone for long enough, what encoding there may cost by now."""
        for name, look in self._looks.items() if self._pause_s > 0.0 else ():
            over = (now_s - look.at_s) / look.pause_s - 1.0
            if over >= 0.0:
                share = _HALF**over
                yield name, Coefficients(share * average.fixed_s, share * average.per_unit_s)
