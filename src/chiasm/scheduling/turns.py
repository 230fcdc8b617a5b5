"""What one thread does next when it has both steps to compute and pictures to encode.

1. Steps that decode, or compute prompts that are complete, go before batches: what is closer to its end ends sooner.
   When they have had `MAX_STEPS` turns while pictures waited, those with texts counted apart, a batch is encoded.
2. Between two pieces of a batch, where the tower can stop there, one step is computed if a text waits for it: so a text
   waits for a piece. After that the batch has `BATCH_SHARE` of the step's time before the next: it takes at most three
   times as long as alone, however many texts come.
3. Prompts that still lack pictures get the thread when no picture waits for it: they are computed ahead in time that
   nothing else has a use for, and lose nothing by waiting.
"""

from collections import Counter
from enum import Enum, IntEnum

MAX_STEPS = 4
BATCH_SHARE = 0.5


class Turn(Enum):
    """One of the two kinds of work, or none."""

    STEP = "step"
    ENCODE = "encode"
    REST = "rest"


class Demand(IntEnum):
    """The most urgent work that a step would do, the most urgent last."""

    NOTHING = 0
    AHEAD = 1
    USUAL = 2
    TEXT = 3


class Turns:
    """Remembers whose turn it was."""

    def __init__(self) -> None:
        self._num_passed: Counter[Demand] = Counter()
        self._owes_until_s = float("-inf")

    def next(self, demand: Demand, *, has_pictures: bool) -> Turn:
        """Decide, and take it as done."""
        turn = self._choose(demand, has_pictures=has_pictures)
        if turn is Turn.STEP and has_pictures:
            self._num_passed[demand] += 1
        else:
            self._num_passed.clear()
        return turn

    def num_more(self, demand: Demand) -> int:
        """Steps that may still follow one that `next` has granted, before a batch, if nothing but steps changes."""
        return max(MAX_STEPS - self._num_passed[demand], 0)

    def took_more(self, demand: Demand, num_steps: int) -> None:
        """Take so many of them as done without asking `next` for each."""
        self._num_passed[demand] += num_steps

    def interrupted(self, start_s: float, end_s: float) -> None:
        """A batch has paused for a step."""
        self._owes_until_s = end_s + BATCH_SHARE * (end_s - start_s)

    def owes_batch(self, now_s: float) -> bool:
        """Whether the batch has not yet had its share of the time since it paused."""
        return now_s < self._owes_until_s

    @staticmethod
    def may_interrupt(demand: Demand) -> bool:
        """Whether a batch pauses for a step."""
        return demand is Demand.TEXT

    def _choose(self, demand: Demand, *, has_pictures: bool) -> Turn:
        if not has_pictures:
            return Turn.REST if demand is Demand.NOTHING else Turn.STEP
        may_pass = demand in (Demand.TEXT, Demand.USUAL) and self._num_passed[demand] < MAX_STEPS
        return Turn.STEP if may_pass else Turn.ENCODE
