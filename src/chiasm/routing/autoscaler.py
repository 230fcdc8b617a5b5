"""How many encoders there should be: decides and does nothing. A cluster acts on it, or says what it would do.

The simulator runs the same object in virtual time.
"""

import math
from collections import deque

import msgspec

_TOLERANCE = 0.1
"""No change while the level is so near its target, as Kubernetes' autoscaler has it."""
_MIN_RISE = 4
"""Encoders that may come at once, however few there are; else as many as there are."""
_MAX_PATIENCE = 8
"""How many times as long it must be calm, at most, where falls have turned out to be wrong."""


class ScalingRule(msgspec.Struct, frozen=True, kw_only=True):
    """What is aimed at, and within which limits.

    Attributes:
        min_encoders: Fewer are never wanted.
        max_encoders: More are never wanted.
        queue_s: The target of `encoder_queue_seconds`.
        calm_s: For how long fewer must be enough before one goes.
        fall_period_s: One goes in so long.
        hour_cost: What an encoder costs in an hour, in any currency.
        max_hour_cost: What all encoders may cost in an hour; 0: no limit. The least number is kept in any case.
    """

    min_encoders: int
    max_encoders: int
    queue_s: float = 0.5
    calm_s: float = 300.0
    fall_period_s: float = 60.0
    hour_cost: float = 0.0
    max_hour_cost: float = 0.0

    @property
    def num_most(self) -> int:
        """The most that may be, by number and by cost."""
        most = self.max_encoders
        if self.hour_cost and self.max_hour_cost:
            most = min(most, math.floor(self.max_hour_cost / self.hour_cost))
        return max(self.min_encoders, most)


class Signal(msgspec.Struct, frozen=True, kw_only=True):
    """What is seen of the fleet at one time.

    Attributes:
        num_encoders: Those that are there or on their way; not those that leave.
        num_ready: Those of them that take work.
        queue_s: Predicted work not done yet, per encoder that is ready.
        slo_misses: Requests that will be late.
    """

    num_encoders: int
    num_ready: int
    queue_s: float
    slo_misses: float = 0.0


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """How many there should be from now on, and why."""

    num_wanted: int
    reason: str


class Autoscaler:
    """Remembers what it decided. Rises at once; falls by one, after a calm that grows where falls were wrong."""

    def __init__(self, rule: ScalingRule) -> None:
        self._rule = rule
        self._wishes: deque[tuple[float, int]] = deque()
        self._fell_s = -math.inf
        self._rose_s = -math.inf
        self._patience = 1

    @property
    def calm_s(self) -> float:
        """For how long fewer must be enough now."""
        return self._rule.calm_s * self._patience

    def decide(self, now_s: float, signal: Signal) -> Decision:
        """Say how many encoders are wanted. Call it again and again, with times that grow."""
        num_now = signal.num_encoders
        wish, reason = self._wish(signal)
        self._wishes.append((now_s, wish))
        while self._wishes[0][0] < now_s - self.calm_s:
            self._wishes.popleft()
        if wish > num_now:
            self._rise(now_s)
            return Decision(num_wanted=wish, reason=reason)
        if max(one for _, one in self._wishes) >= num_now:
            return Decision(num_wanted=num_now, reason="enough" if wish == num_now else "not calm for long enough")
        if now_s - max(self._fell_s, self._rose_s) < self._rule.fall_period_s:
            return Decision(num_wanted=num_now, reason="changed a moment ago")
        self._fell_s = now_s
        return Decision(num_wanted=num_now - 1, reason=f"{wish} were enough for {self.calm_s:.0f} s")

    def _wish(self, signal: Signal) -> tuple[int, str]:
        """As many as bring the wait to its target, within the limits."""
        num_now, target_s = signal.num_encoders, self._rule.queue_s
        wish, reason = num_now, "enough"
        if signal.num_ready and abs(signal.queue_s / target_s - 1.0) > _TOLERANCE:
            wish = math.ceil(signal.queue_s * signal.num_ready / target_s)
            reason = f"a picture waits {signal.queue_s:.2f} s at {signal.num_ready}, {target_s:g} s is aimed at"
        if signal.slo_misses and signal.queue_s and wish <= num_now == signal.num_ready:
            wish, reason = num_now + 1, f"{signal.slo_misses:.0f} requests will be late, pictures wait"
        most = min(self._rule.num_most, num_now + max(num_now, _MIN_RISE))
        return min(max(wish, self._rule.min_encoders), most), reason

    def _rise(self, now_s: float) -> None:
        """A rise soon after a fall says that the fall was wrong."""
        if now_s - self._fell_s < self.calm_s:
            self._patience = min(2 * self._patience, _MAX_PATIENCE)
            self._fell_s = -math.inf  # one fall is regretted once
        elif now_s - self._rose_s > _MAX_PATIENCE * self._rule.calm_s:
            self._patience = 1
        self._rose_s = now_s
