"""So much a minute: counted here, or leased from a bucket that several gateways draw from."""

from chiasm.sharing.base import RateAsk, RateGrant

_MINUTE_S = 60.0
_BURST_S = 10.0
_SMOOTHING = 0.3
_IDLE_PER_S = 0.01
_AHEAD_S = 2.0
"""For how long a slice should last that is fetched before it is needed."""


class Budget:
    """So much a minute, filled steadily up to ten seconds' worth: a longer burst would be a queue for others.

    What something costs is often known only after it: the level may become negative, and nothing more is allowed
    until it has filled up again.

    Alone, it fills by itself, by a `part` of what is allowed. Leased, it has what a store gave it, and no more.
    """

    def __init__(self, name: str, per_minute: float, now_s: float) -> None:
        self.name = name
        self.per_minute = per_minute
        self.most = max(1.0, per_minute * _BURST_S / _MINUTE_S)
        self._part = 1.0
        self._is_leased = False
        self._level = self.most
        self._at_s = now_s
        self._used = 0.0
        self._per_s = 0.0  # used of late
        self._full_at_s = 0.0  # when the store should have more

    def wait_s(self, now_s: float) -> float:
        """Seconds until one more is allowed; 0 for now."""
        self._fill(now_s)
        if self._level >= 1.0:
            return 0.0
        if self._is_leased:
            return max(self._full_at_s - now_s, _MINUTE_S / self.per_minute)
        return (1.0 - self._level) * _MINUTE_S / (self.per_minute * self._part)

    def take(self, amount: float, now_s: float) -> None:
        """Use so much, whether it is there or not."""
        self._fill(now_s)
        self._level -= amount
        self._used += amount

    def lease(self, now_s: float) -> None:
        """Have nothing from now on but what the store gives. What was used too much stays used."""
        if not self._is_leased:
            self._fill(now_s)
            self._level, self._is_leased = min(self._level, 0.0), True

    def keep_part(self, part: float, now_s: float) -> None:
        """Fill by itself from now on, by a part of what is allowed: so many others do the same."""
        self._fill(now_s)
        self._part, self._is_leased = part, False

    def ask(self, key: str, num_gateways: int, num_waiting: int) -> RateAsk | None:
        """What to ask the store for requests that wait and for those soon to come; None for nothing.

        A debt is sent at once, and what lies idle given back; `settle` or `fail` follows.
        """
        target = max(float(num_waiting), self._target(num_gateways))
        kept = max(self._level, 0.0)
        if kept > 2 * target:
            kept = target
        returned, self._level = self._level - kept, kept
        wanted = target - self._level if self._level < max(target / 2, float(num_waiting)) else 0.0
        if not returned and wanted <= 0:
            return None
        return RateAsk(
            key=key,
            per_minute=self.per_minute,
            most=self.most,
            returned=returned,
            needed=max(0.0, 1.0 - self._level) if wanted > 0 else 0.0,
            wanted=max(wanted, 0.0),
        )

    def settle(self, ask: RateAsk, grant: RateGrant, now_s: float) -> None:
        """Take what the store gave."""
        if self._is_leased:
            self._level += grant.amount
        if ask.wanted > 0 and not grant.amount:
            self._full_at_s = now_s + grant.wait_s

    def fail(self, ask: RateAsk) -> None:
        """The store did not answer: a debt stays one, and what was given back is not used."""
        self._level += min(ask.returned, 0.0)

    def note_pace(self, elapsed_s: float) -> None:
        """Learn how fast it is used; called about as often as `ask` is."""
        self._per_s += _SMOOTHING * (self._used / elapsed_s - self._per_s)
        self._used = 0.0

    def _target(self, num_gateways: int) -> float:
        """What to have at hand: nothing of a small limit, of which others would then have nothing."""
        most = self.most / (2 * num_gateways)
        if most < 1.0 or self._per_s < _IDLE_PER_S:
            return 0.0
        return min(most, max(1.0, _AHEAD_S * self._per_s))

    def _fill(self, now_s: float) -> None:
        if not self._is_leased:
            gained = (now_s - self._at_s) * self.per_minute * self._part / _MINUTE_S
            self._level = min(max(1.0, self.most * self._part), self._level + gained)
        self._at_s = now_s
