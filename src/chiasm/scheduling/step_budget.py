"""How much of prompts with pictures a step computes: while texts come, as much as a text can be made to wait for."""

from chiasm.scheduling.turns import Demand

TEXTS_COME_S = 1.0
"""After a text had to be computed, others are expected for so long."""
_MIN_TOKENS = 16
_KEPT = 0.98
"""Weight of what was known when a step has been measured."""


class StepBudget:
    """Bounds steps by their time, going by what steps took lately.

    What a step computes may always take as long as its fixed cost, which is mostly reading the weights: so prompts take
    at most about twice the time that they take in one go.
    """

    def __init__(self, max_step_s: float) -> None:
        self._max_step_s = max_step_s
        self._text_s = float("-inf")
        self._cost = _Line()

    def max_media_tokens(self, demand: Demand, now_s: float) -> int | None:
        """Of prompts in a step now, if some have pictures; None for no bound. `demand` is the scheduler's."""
        if demand is Demand.TEXT:
            self._text_s = now_s
        if now_s - self._text_s > TEXTS_COME_S:
            return None
        fixed_s, each_s = self._cost.coefficients
        if each_s <= 0.0:
            return None
        return max(_MIN_TOKENS, int(max(self._max_step_s - fixed_s, fixed_s) / each_s))

    def see(self, num_tokens: int, seconds: float) -> None:
        """A step of so many tokens, decode rows included, took this long."""
        self._cost.add(num_tokens, seconds)


class _Line:
    """A line through points of which older ones count less."""

    def __init__(self) -> None:
        self._weight = self._x = self._y = 0.0
        self._xx = self._xy = 0.0  # sums of squares and products of deviations from the means
        self._found: tuple[float, float] | None = None

    def add(self, x: float, y: float) -> None:
        """Take a point into account."""
        self._found = None
        self._weight = _KEPT * self._weight + 1.0
        share, dx, dy = 1.0 / self._weight, x - self._x, y - self._y
        self._x += share * dx
        self._y += share * dy
        self._xx = _KEPT * self._xx + dx * (x - self._x)
        self._xy = _KEPT * self._xy + dx * (y - self._y)

    @property
    def coefficients(self) -> tuple[float, float]:
        """Value at zero and slope, neither negative; (0, 0) before there was a point."""
        if self._found is None:
            self._found = self._fitted()
        return self._found

    def _fitted(self) -> tuple[float, float]:
        if self._xx <= 0.0:
            return 0.0, self._y / self._x if self._x else 0.0
        slope = min(max(0.0, self._xy / self._xx), self._y / self._x if self._x else 0.0)
        return max(0.0, self._y - slope * self._x), slope
