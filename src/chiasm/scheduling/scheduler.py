"""Continuous batching: decode rows first, then prefill chunks up to the token budget.

Prompts are served in this order, at slots and at the budget alike: by the caller's priority; then texts, prompts whose
pictures are all there, prompts that still lack some; then by arrival. None of these ranks is passed over without end
(`chiasm.scheduling.precedence`). Prompts that lack pictures have at most half of the slots and never take the last
free one, so that waiting for an encoder keeps nobody from running; what is there of such a prompt is computed, no more.

Steps with prompts of pictures can be kept small, so that texts wait for little of them: `scheduling.step_budget`. Then
a step with a text in it has none of them, either, so that the text's first token does not wait for their share: but no
more than `MAX_ALONE` such steps follow each other.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

import msgspec

from chiasm.errors import OverloadedError
from chiasm.scheduling.precedence import Lines, Precedence, Rank
from chiasm.scheduling.slots import SlotMove, SlotTable
from chiasm.scheduling.turns import Demand

MAX_ALONE = 2


class State(Enum):
    """Life of a sequence; it only moves downwards, and may end from anywhere."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class Sequence:
    """What the scheduler knows of one output.

    Attributes:
        after: A sequence whose prefill must be over first (n > 1).
        has_media: Whether its prompt has pictures.
        priority: The caller's; lower goes first.
        num_missing_tokens: At the prompt's end, those that cannot be computed before more pictures come.
    """

    key: int
    num_prompt_tokens: int
    after: "Sequence | None" = None
    has_media: bool = False
    priority: int = 0
    num_missing_tokens: int = 0
    state: State = State.WAITING
    num_computed_tokens: int = 0

    @property
    def demand(self) -> Demand:
        """How urgent its prompt is."""
        if self.num_missing_tokens:
            return Demand.AHEAD
        return Demand.USUAL if self.has_media else Demand.TEXT

    @property
    def rank(self) -> Rank:
        """See `chiasm.scheduling.precedence.Ranked`."""
        return self.priority, -self.demand

    @property
    def num_computable_tokens(self) -> int:
        """Prompt tokens that could be computed now; what a cache brought may reach beyond them."""
        return max(0, self.num_prompt_tokens - self.num_missing_tokens - self.num_computed_tokens)

    @property
    def may_start(self) -> bool:
        """Whether nothing it waits for is still under way."""
        return self.after is None or self.after.state in (State.DECODING, State.ENDED)


class Chunk(msgspec.Struct, frozen=True):
    """`num_tokens` prompt tokens of a sequence, from `start` on, computed in one step."""

    sequence: Sequence
    slot: int
    start: int
    num_tokens: int

    @property
    def is_last(self) -> bool:
        """Whether the prompt ends with this chunk, so that a token is sampled."""
        return self.start + self.num_tokens == self.sequence.num_prompt_tokens


class Step(msgspec.Struct, frozen=True):
    """One forward pass: `num_decoding` rows in slots 0.., then the chunks."""

    num_decoding: int
    chunks: tuple[Chunk, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Rows of the forward pass."""
        return self.num_decoding + sum(chunk.num_tokens for chunk in self.chunks)

    @property
    def is_empty(self) -> bool:
        """Nothing to compute."""
        return not self.num_decoding and not self.chunks


class Scheduler:
    """Holds all sequences that have not ended. Moves returned must be applied to the KV at once, in order."""

    def __init__(self, *, num_slots: int, max_step_tokens: int, max_waiting: int) -> None:
        self.slots = SlotTable(num_slots)
        self._max_step_tokens = max(max_step_tokens, num_slots + 1)
        self._max_waiting = max_waiting
        self._max_incomplete = num_slots // 2
        self._waiting: Lines[Sequence] = Lines()
        self._at_slots = Precedence()
        self._at_budget = Precedence()
        self._num_alone = 0
        self._prefilling: list[Sequence] = []
        self._decoding: dict[int, Sequence] = {}

    @property
    def num_waiting(self) -> int:
        """Sequences without a slot."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Sequences with a slot."""
        return len(self._prefilling) + len(self._decoding)

    @property
    def has_work(self) -> bool:
        """Whether any sequence has not ended."""
        return bool(self._waiting or self._prefilling or self._decoding)

    @property
    def demand(self) -> Demand:
        """The most urgent work of a step planned now."""
        usual = Demand.USUAL if self._decoding else Demand.NOTHING
        if not self._prefilling and not self._waiting:
            return usual
        demands = [usual]
        demands += [sequence.demand for sequence in self._prefilling if sequence.num_computable_tokens]
        if self._waiting and self.slots.num_free:
            demands += [sequence.demand for sequence in self._heads()]
        return max(demands)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises `OverloadedError` when the queue is full."""
        if len(self._waiting) >= self._max_waiting:
            raise OverloadedError(
                f"{len(self._waiting)} sequences already wait for the engine", hint="Retry later or add workers."
            )
        self._waiting.add(sequence)

    def set_missing(self, sequence: Sequence, num_missing_tokens: int) -> None:
        """More of a prompt can be computed; harmless when it has ended."""
        sequence.num_missing_tokens = num_missing_tokens
        if sequence.state is State.WAITING:
            self._waiting.rerank(sequence)

    def plan(self, on_admit: Callable[[Sequence, int], int], max_media_tokens: int | None = None) -> Step:
        """Choose the next step.

        Args:
            on_admit: Called with (sequence, slot) when one gets its slot; returns how many prompt tokens it put there
                from a cache (fewer than the prompt).
            max_media_tokens: Prompts with pictures fill the step up to so many tokens of prompts, and leave that of a
                text to it alone; None: as others do.
        """
        if self._waiting:
            self._admit(on_admit)
        if not self._prefilling:
            self._at_budget.forget()
            self._num_alone = 0  # such steps no longer follow each other
            return Step(self.slots.num_decoding)
        line = [sequence for sequence in self._prefilling if sequence.num_computable_tokens]
        chunks = self._chunks(self._at_budget.in_order(line), max_media_tokens)
        self._at_budget.served(line, [chunk.sequence for chunk in chunks])
        return Step(self.slots.num_decoding, chunks)

    def complete(self, step: Step) -> list[tuple[Sequence, SlotMove | None]]:
        """Record that a step was computed; returns the sequences that now decode, with the moves this takes."""
        promoted = []
        for chunk in step.chunks:
            sequence = chunk.sequence
            sequence.num_computed_tokens = chunk.start + chunk.num_tokens
            if chunk.is_last:
                self._prefilling.remove(sequence)
                sequence.state = State.DECODING
                self._decoding[sequence.key] = sequence
                promoted.append((sequence, self.slots.promote(sequence.key)))
        return promoted

    def end(self, sequence: Sequence) -> SlotMove | None:
        """Remove a sequence wherever it stands; ending twice is harmless."""
        state, sequence.state = sequence.state, State.ENDED
        if state is State.WAITING:
            self._waiting.remove(sequence)
        elif state is State.PREFILLING:
            self._prefilling.remove(sequence)
            return self.slots.release(sequence.key)
        elif state is State.DECODING:
            del self._decoding[sequence.key]
            return self.slots.release(sequence.key)
        return None

    def _chunks(self, line: Iterable[Sequence], max_media_tokens: int | None) -> tuple[Chunk, ...]:
        """What of these prompts, in this order, a step computes."""
        room = self._max_step_tokens - self.slots.num_decoding
        media_room = room if max_media_tokens is None else min(room, max_media_tokens)
        may_be_alone = max_media_tokens is not None and self._num_alone < MAX_ALONE
        chunks: list[Chunk] = []
        is_alone = False
        for sequence in line:
            count = min(media_room if sequence.has_media else room, sequence.num_computable_tokens)
            if count <= 0:
                continue
            if sequence.has_media and may_be_alone and any(not chunk.sequence.has_media for chunk in chunks):
                is_alone = True
                continue
            chunks.append(Chunk(sequence, self.slots.slot(sequence.key), sequence.num_computed_tokens, count))
            room -= count
            media_room = min(room, media_room - count)
        self._num_alone = self._num_alone + 1 if is_alone else 0
        return tuple(chunks)

    def _admit(self, on_admit: Callable[[Sequence, int], int]) -> None:
        while self.slots.num_free and (heads := self._heads()):
            sequence = self._at_slots.in_order(heads)[0]
            self._at_slots.served(heads, [sequence])
            self._waiting.remove(sequence)
            sequence.state = State.PREFILLING
            sequence.num_computed_tokens = on_admit(sequence, self.slots.take(sequence.key))
            self._prefilling.append(sequence)

    def _heads(self) -> list[Sequence]:
        """Of each rank, the first that may have a slot."""
        if not self._waiting:
            return []
        num_incomplete = sum(bool(sequence.num_missing_tokens) for sequence in self._prefilling)
        has_room = num_incomplete < self._max_incomplete and self.slots.num_free > 1
        return self._waiting.heads(lambda one: one.may_start and (has_room or not one.num_missing_tokens))
