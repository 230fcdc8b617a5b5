"""Encode calls under way, so that a picture is not sent twice while its embedding is being made."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Coroutine, Mapping
from typing import Any

import msgspec

from chiasm.observability.receipt import Span
from chiasm.protocol.media import EmbeddingHandle

Picture = tuple[str, str]
"""Identity, and the salt of those who share its embedding."""


class Delivered(msgspec.Struct, frozen=True, kw_only=True):
    """What an encode call brought. `spans` are on the router's clock; their items are positions in the call."""

    handles: Mapping[str, EmbeddingHandle]
    spans: tuple[Span, ...]


class Flight:
    """One call to one worker for some pictures."""

    def __init__(self, worker: str, pictures: Collection[Picture], task: "asyncio.Task[Delivered]") -> None:
        self.worker = worker
        self.pictures = frozenset(pictures)
        self.task = task
        self.num_waiters = 0


class Flights:
    """The calls by the pictures they are about. A call whose last waiter leaves is cancelled. One event loop only."""

    def __init__(self) -> None:
        self._by_picture: dict[Picture, Flight] = {}
        self._landing: set[asyncio.Task[Delivered]] = set()

    def __len__(self) -> int:
        return len(self._landing)

    def get(self, identity: str, cache_salt: str) -> Flight | None:
        """The call that is about a picture, if any."""
        return self._by_picture.get((identity, cache_salt))

    def start(
        self, worker: str, identities: Collection[str], call: Coroutine[Any, Any, Delivered], cache_salt: str
    ) -> Flight:
        """Begin a call; the caller must wait for its `landing` before it awaits anything else."""
        task = asyncio.create_task(call)
        self._landing.add(task)
        task.add_done_callback(self._landed)
        flight = Flight(worker, [(identity, cache_salt) for identity in identities], task)
        for picture in flight.pictures:
            self._by_picture[picture] = flight
        return flight

    async def landing(self, flights: Collection[Flight], limit_s: float) -> AsyncGenerator[Flight, None]:
        """Each as it ends, and at the limit those that have not; ask its task what came of it. To be closed."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + limit_s
        under_way = {flight.task: flight for flight in flights}
        for flight in flights:
            flight.num_waiters += 1
        try:
            while under_way:
                waited_s = max(end_s - loop.time(), 0.0)
                ended, _ = await asyncio.wait(under_way, timeout=waited_s, return_when=asyncio.FIRST_COMPLETED)
                for task in [one for one in under_way if one in ended] or list(under_way):
                    yield under_way.pop(task)
        finally:
            for flight in flights:
                self._leave(flight)

    async def aclose(self) -> None:
        """Cancel what is under way."""
        tasks = list(self._landing)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _leave(self, flight: Flight) -> None:
        flight.num_waiters -= 1
        if flight.num_waiters and not flight.task.done():
            return
        flight.task.cancel()
        for picture in flight.pictures:
            if self._by_picture.get(picture) is flight:
                del self._by_picture[picture]

    def _landed(self, task: "asyncio.Task[Delivered]") -> None:
        self._landing.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited has it; one that nobody waited for is not to be warned of
