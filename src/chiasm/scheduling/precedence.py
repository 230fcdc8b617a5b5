"""Who goes first where several want the same thing: by rank, then by arrival, but no rank is passed over without end.

A rank that got nothing in `MAX_PASSED` turns that others got goes first once. So the first of a rank waits for
`MAX_PASSED` turns, and for one of each other rank that has waited as long; those behind it wait for it as well.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

MAX_PASSED = 8

Rank = tuple[int, ...]


class Ranked(Protocol):
    """One that waits. Hashed by identity."""

    @property
    def rank(self) -> Rank:
        """Lower goes first."""
        ...


R = TypeVar("R", bound=Ranked)


class Precedence:
    """Remembers how often each rank was passed over at one resource."""

    def __init__(self) -> None:
        self._num_passed: dict[Rank, int] = {}

    def in_order(self, line: Sequence[R]) -> Sequence[R]:
        """All, in the order in which they are to be served. `line` is in order of arrival."""
        return line if len(line) < 2 else sorted(line, key=lambda one: self._key(one.rank))

    def served(self, waiting: Iterable[Ranked], served: Iterable[Ranked]) -> None:
        """Count a turn in which some of those waiting got something."""
        got = {one.rank for one in served}
        left = {one.rank for one in waiting} - got if got else ()
        self._num_passed = {rank: self._num_passed.get(rank, 0) + 1 for rank in left} if left else {}

    def forget(self) -> None:
        """Nobody waits."""
        if self._num_passed:
            self._num_passed = {}

    def _key(self, rank: Rank) -> tuple[int, ...]:
        num_passed = self._num_passed.get(rank, 0)
        return (0, -num_passed) if num_passed >= MAX_PASSED else (1, *rank)


class Lines(Generic[R]):
    """Those who wait, first come first served within a rank."""

    def __init__(self) -> None:
        self._lines: dict[Rank, dict[int, R]] = {}
        self._places: dict[R, tuple[Rank, int]] = {}
        self._num_arrived = 0

    def __len__(self) -> int:
        return len(self._places)

    def add(self, one: R) -> None:
        """Stand at the end of one's rank."""
        self._put(one, self._num_arrived)
        self._num_arrived += 1

    def remove(self, one: R) -> None:
        """Leave."""
        rank, number = self._places.pop(one)
        del self._lines[rank][number]
        if not self._lines[rank]:
            del self._lines[rank]

    def rerank(self, one: R) -> None:
        """Move to where one would stand had one had the rank that it has now from the start."""
        _, number = self._places[one]
        self.remove(one)
        self._put(one, number)
        self._lines[one.rank] = dict(sorted(self._lines[one.rank].items()))

    def heads(self, may_go: Callable[[R], bool]) -> list[R]:
        """Of each rank, the first that may go, if any."""
        found = (next((one for one in line.values() if may_go(one)), None) for line in self._lines.values())
        return [one for one in found if one is not None]

    def _put(self, one: R, number: int) -> None:
        self._places[one] = (one.rank, number)
        self._lines.setdefault(one.rank, {})[number] = one
