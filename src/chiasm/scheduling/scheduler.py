"""Continuous batching: decode rows first, then prefill chunks up to the token budget, first come first served."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from chiasm.errors import OverloadedError
from chiasm.scheduling.slots import SlotMove, SlotTable


class State(Enum):
    """Life of a sequence; it only moves downwards, and may end from anywhere."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class Sequence:
    """What the scheduler knows of one output. `after` is a sequence whose prefill must be over first (n > 1)."""

    key: int
    num_prompt_tokens: int
    after: "Sequence | None" = None
    state: State = State.WAITING
    num_computed_tokens: int = 0

    @property
    def may_start(self) -> bool:
        """Whether nothing it waits for is still under way."""
        return self.after is None or self.after.state in (State.DECODING, State.ENDED)


@dataclass(frozen=True)
class Chunk:
    """`num_tokens` prompt tokens of a sequence, from `start` on, computed in one step."""

    sequence: Sequence
    slot: int
    start: int
    num_tokens: int

    @property
    def is_last(self) -> bool:
        """Whether the prompt ends with this chunk, so that a token is sampled."""
        return self.start + self.num_tokens == self.sequence.num_prompt_tokens


@dataclass(frozen=True)
class Step:
    """One forward pass: `num_decoding` rows in slots 0.., then the chunks."""

    num_decoding: int
    chunks: tuple[Chunk, ...] = field(default=())

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
        self._waiting: deque[Sequence] = deque()
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
        """Whether a step could compute something."""
        return bool(self._waiting or self._prefilling or self._decoding)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises `OverloadedError` when the queue is full."""
        if len(self._waiting) >= self._max_waiting:
            raise OverloadedError(
                f"{len(self._waiting)} sequences already wait for the engine", hint="Retry later or add workers."
            )
        self._waiting.append(sequence)

    def plan(self, on_admit: Callable[[Sequence, int], int]) -> Step:
        """Choose the next step.

        Args:
            on_admit: Called with (sequence, slot) when one gets its slot; returns how many prompt tokens it put there
                from a cache (fewer than the prompt).
        """
        self._admit(on_admit)
        budget = self._max_step_tokens - self.slots.num_decoding
        chunks = []
        for sequence in self._prefilling:
            if budget <= 0:
                break
            start = sequence.num_computed_tokens
            count = min(budget, sequence.num_prompt_tokens - start)
            chunks.append(Chunk(sequence, self.slots.slot(sequence.key), start, count))
            budget -= count
        return Step(self.slots.num_decoding, tuple(chunks))

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

    def _admit(self, on_admit: Callable[[Sequence, int], int]) -> None:
        held_back: list[Sequence] = []
        while self._waiting and self.slots.num_free:
            sequence = self._waiting.popleft()
            if not sequence.may_start:
                held_back.append(sequence)
                continue
            sequence.state = State.PREFILLING
            sequence.num_computed_tokens = on_admit(sequence, self.slots.take(sequence.key))
            self._prefilling.append(sequence)
        self._waiting.extendleft(reversed(held_back))
