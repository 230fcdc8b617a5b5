"""How often something comes."""

from math import exp

_MEMORY_S = 10.0


class Arrivals:
    """A rate over the last seconds; older arrivals fade."""

    def __init__(self) -> None:
        self._count = 0.0
        self._seen_s = 0.0

    def see(self, now_s: float) -> None:
        """One more."""
        self._count = self._faded(now_s) + 1.0
        self._seen_s = now_s

    def per_s(self, now_s: float) -> float:
        """How many come in a second."""
        return self._faded(now_s) / _MEMORY_S

    def _faded(self, now_s: float) -> float:
        return self._count * exp((self._seen_s - now_s) / _MEMORY_S)
