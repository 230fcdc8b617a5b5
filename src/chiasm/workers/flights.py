"""Work that several requests wait for at once, done once."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


@dataclass
class _Flight(Generic[T]):
    task: "asyncio.Task[T]"
    num_waiters: int = 0
    is_wanted: bool = True


class SingleFlight(Generic[K, T]):
    """Runs one piece of work per key at a time. One event loop only.

    The work is cancelled when its last waiter leaves. A result is handed to `discard` when the last waiter has left,
    with whether it may be kept.
    """

    def __init__(self, discard: Callable[[T, bool], None]) -> None:
        self._flights: dict[K, _Flight[T]] = {}
        self._discard = discard

    def __len__(self) -> int:
        return len(self._flights)

    def __contains__(self, key: K) -> bool:
        return key in self._flights

    @asynccontextmanager
    async def join(self, key: K, work: Callable[[], Awaitable[T]]) -> AsyncIterator[T]:
        """Wait for the work of this key, starting it if it is not under way; its errors reach every waiter."""
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight(asyncio.ensure_future(work()))
        flight.num_waiters += 1
        try:
            yield await asyncio.shield(flight.task)
        finally:
            flight.num_waiters -= 1
            if not flight.num_waiters:
                self._land(key, flight)

    def disown(self, is_theirs: Callable[[K], bool]) -> list[K]:
        """Say of the results of some work under way that they may not be kept; returns the keys."""
        theirs = [key for key in self._flights if is_theirs(key)]
        for key in theirs:
            self._flights[key].is_wanted = False
        return theirs

    def _land(self, key: K, flight: _Flight[T]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
        if not flight.task.done():
            flight.task.cancel()
        elif not flight.task.cancelled() and flight.task.exception() is None:
            self._discard(flight.task.result(), flight.is_wanted)
