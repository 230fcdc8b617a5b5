"""Weighted fair queueing: the tenant that was served least for its weight goes next.

Service is measured, in seconds of running slots: what a request will take is not known when it starts, so that an
estimate is charged then and corrected when it ends. A tenant that comes back has no credit for the time that it was
away: it starts at the level of the one served least among those present. After "Virtual Token Counter" in Sheng et
al., Fairness in Serving Large Language Models, OSDI 2024, with time in place of tokens.
"""

from collections import deque
from typing import Any, Generic, TypeVar

Waiting = TypeVar("Waiting")


class Share:
    """One tenant's part: its weight, what it was served, and what it has open. Owned by a `Meter`, or by nobody."""

    __slots__ = ("name", "num_open", "num_running", "owed_s", "pending", "served_s", "waiting", "weight")

    def __init__(self, name: str, weight: float = 1.0) -> None:
        self.name = name
        self.weight = weight
        self.served_s = 0.0
        self.owed_s = 0.0  # by what runs
        self.num_open = 0
        self.num_running = 0
        self.waiting: deque[tuple[int, Any]] = deque()
        self.pending: dict[Any, None] = {}  # open and without a slot, oldest first


class FairQueue(Generic[Waiting]):
    """Who waits, by tenant; within a tenant first come first served. Bounded by who fills it."""

    def __init__(self) -> None:
        self._present: dict[Share, None] = {}  # with something that waits or runs
        self._level_s = 0.0
        self._num_waiting = 0
        self._sequence = 0

    def __len__(self) -> int:
        return self._num_waiting

    def push(self, share: Share, waiting: Waiting) -> None:
        """Let something wait."""
        self._arrive(share)
        self._sequence += 1
        self._num_waiting += 1
        share.waiting.append((self._sequence, waiting))

    def pop(self) -> tuple[Share, Waiting]:
        """Take out what goes next; something must wait. `start` follows."""
        share = min((one for one in self._present if one.waiting), key=_turn)
        self._num_waiting -= 1
        return share, share.waiting.popleft()[1]

    def remove(self, share: Share, waiting: Waiting) -> None:
        """Take out something that gave up; nothing happens when it does not wait any more."""
        kept = deque(one for one in share.waiting if one[1] is not waiting)
        self._num_waiting -= len(share.waiting) - len(kept)
        share.waiting = kept
        self._leave(share)

    def start(self, share: Share, estimated_s: float) -> None:
        """A tenant gets a slot, for about so long."""
        self._arrive(share)
        share.num_running += 1
        share.owed_s += estimated_s / share.weight

    def end(self, share: Share, ran_s: float, estimated_s: float) -> None:
        """It gives the slot back, after `ran_s`."""
        share.num_running -= 1
        share.owed_s -= estimated_s / share.weight
        share.served_s += ran_s / share.weight
        self._leave(share)

    def _arrive(self, share: Share) -> None:
        if share not in self._present:
            if self._present:
                self._level_s = min(one.served_s for one in self._present)
            share.served_s = max(share.served_s, self._level_s)
            self._present[share] = None

    def _leave(self, share: Share) -> None:
        if share.waiting or share.num_running or share not in self._present:
            return
        del self._present[share]
        if not self._present:
            self._level_s = max(self._level_s, share.served_s)


def _turn(share: Share) -> tuple[float, int]:
    return share.served_s + share.owed_s, share.waiting[0][0]
