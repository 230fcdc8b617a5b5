"""What one thread does next when it has both steps to compute and pictures to encode.

1. A step that computes the prompt of a text goes first: a text waits for the batch under way and for no other. When
   texts have had `MAX_TEXT_TURNS` turns while pictures waited, a batch is encoded.
2. Batches and other steps, which decode or compute prompts whose pictures are all there, alternate.
3. Prompts that still lack pictures get the thread when no picture waits for it: they are computed ahead in time that
   nothing else has a use for, and lose nothing by waiting.
"""

from enum import Enum

MAX_TEXT_TURNS = 4


class Turn(Enum):
    """One of the two kinds of work, or none."""

    STEP = "step"
    ENCODE = "encode"
    REST = "rest"


class Demand(Enum):
    """The most urgent work that a step would do, the most urgent last."""

    NOTHING = 0
    AHEAD = 1
    USUAL = 2
    TEXT = 3


class Turns:
    """Remembers whose turn it was."""

    def __init__(self) -> None:
        self._num_passed = 0

    def next(self, demand: Demand, *, has_pictures: bool) -> Turn:
        """Decide, and take it as done."""
        turn = self._choose(demand, has_pictures=has_pictures)
        self._num_passed = self._num_passed + 1 if turn is Turn.STEP and has_pictures else 0
        return turn

    def _choose(self, demand: Demand, *, has_pictures: bool) -> Turn:
        if not has_pictures:
            return Turn.REST if demand is Demand.NOTHING else Turn.STEP
        allowed = {Demand.TEXT: MAX_TEXT_TURNS, Demand.USUAL: 1}.get(demand, 0)
        return Turn.STEP if self._num_passed < allowed else Turn.ENCODE
