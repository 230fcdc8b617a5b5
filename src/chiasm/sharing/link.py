"""A gateway's connection to the store: announced again and again, given up at once, taken up again by itself."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Protocol, TypeVar

from chiasm.observability.logs import LOGGER
from chiasm.sharing.base import Store
from chiasm.sharing.presence import Presence, SharedWorker, decode_presence, encode_presence

INTERVAL_S = 0.25
"""Between rounds: how long what one gateway knows takes to the others, about."""
TTL_S = 5.0
"""After which a gateway that says nothing is gone, and its permits with it."""
DEADLINE_S = 1.0
"""Of a call, where no request waits for it."""
HURRY_S = 0.25
"""Of a call that a request waits for."""
ASSUMED_GATEWAYS = 2
"""By which limits are divided where the store has never answered and nobody says more: who names one is not alone."""
_SETTLED_S = TTL_S + 1.0
"""After which all gateways have come back to a store that answers again."""
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 4.0

Answer = TypeVar("Answer")


class Participant(Protocol):
    """Something that has to do with the store in every round."""

    async def round(self) -> None:
        """Send and fetch what is due. Raises `ConnectionError` where the store does not answer."""
        ...

    def lost(self) -> None:
        """The store is gone: go on without it."""
        ...


class Link:
    """The way to the store. Belongs to one event loop.

    Attributes:
        presence: What is said of this gateway from the next round on.
        others: The other gateways that serve, as of the last round.
        workers: Those that other gateways tell of, serving or not.
        num_gateways: Those that serve, and this one, when the store last answered.
        num_sharing: By how many the limits are divided without the store. It does not fall at once when the store comes
            back, since the others have yet to come back, too.
        is_up: Whether it answered last time. A store that is this gateway's own is always up.
        num_failures: Calls that it did not answer.
    """

    def __init__(
        self, store: Store, clock: Callable[[], float] = time.monotonic, assumed_gateways: int = ASSUMED_GATEWAYS
    ) -> None:
        """Say nothing yet. `assumed_gateways` is by how many limits are divided until the store has answered once."""
        self.store = store
        self.presence = Presence()
        self.others: Mapping[str, Presence] = {}
        self.workers: tuple[SharedWorker, ...] = ()
        self.num_gateways = 1
        self.num_sharing = assumed_gateways if store.is_shared else 1
        self.is_up = not store.is_shared
        self.num_failures = 0
        self._clock = clock
        self._round = asyncio.Lock()
        self._participants: list[Participant] = []
        self._pause_s = 0.0
        self._retry_at_s = 0.0
        self._back_at_s = clock()
        self._was_told = False

    @property
    def name(self) -> str:
        """This gateway's."""
        return self.store.name

    @property
    def is_shared(self) -> bool:
        """Whether other gateways may be there."""
        return self.store.is_shared

    @property
    def is_degraded(self) -> bool:
        """Whether there should be a store, and it does not answer."""
        return self.is_shared and not self.is_up

    def add(self, participant: Participant) -> None:
        """Let something take part in rounds, in the order in which they were added."""
        self._participants.append(participant)

    async def call(self, ask: Callable[[Store], Awaitable[Answer]], *, is_urgent: bool = False) -> Answer:
        """Ask the store. Raises `ConnectionError`, at once while it is known to be gone."""
        if not self.is_up:
            raise ConnectionError("the store is gone")
        return await self._call(ask, HURRY_S if is_urgent else DEADLINE_S)

    async def run(self) -> None:
        """Keep the link until cancelled."""
        while True:
            if self.is_up or self._clock() >= self._retry_at_s:
                await self.round()
            await asyncio.sleep(INTERVAL_S)

    async def round(self) -> None:
        """Announce this gateway and let everything take part once. Never raises for a store that is gone."""
        async with self._round:
            record = encode_presence(self.presence)
            try:
                self._found(await self._call(lambda store: store.announce(record, TTL_S), DEADLINE_S))
                for participant in self._participants:
                    await participant.round()
            except ConnectionError:
                return

    def give_up(self, fault: Exception) -> None:
        """Nobody keeps the link any more: go on without the store for good."""
        self._lose(fault)

    async def aclose(self) -> None:
        """Say goodbye, if anybody listens, and close the store."""
        with suppress(ConnectionError):
            await self.call(lambda store: store.leave())
        with suppress(ConnectionError):
            await self._call(lambda store: store.aclose(), DEADLINE_S)

    async def _call(self, ask: Callable[[Store], Awaitable[Answer]], deadline_s: float) -> Answer:
        try:
            async with asyncio.timeout(deadline_s):
                return await ask(self.store)
        except (TimeoutError, ConnectionError) as error:
            self._lose(error)
            raise ConnectionError("the store did not answer") from error

    def _found(self, records: Mapping[str, bytes]) -> None:
        there = {name: decode_presence(record) for name, record in records.items() if name != self.name}
        self.others = {name: one for name, one in there.items() if one.is_serving}
        self.workers = tuple(worker for one in there.values() for worker in one.workers)
        self.num_gateways = len(self.others) + 1
        if not self.is_up:
            self._back_at_s = self._clock()
        is_settled = self._clock() - self._back_at_s >= _SETTLED_S
        self.num_sharing = self.num_gateways if is_settled else max(self.num_gateways, self.num_sharing)
        if not self.is_up or not self._was_told:
            self.is_up, self._was_told, self._pause_s = True, True, 0.0
            if self.is_shared:
                LOGGER.info("The shared store answers; this is %s, one of %d", self.name, self.num_gateways)

    def _lose(self, error: Exception) -> None:
        self.num_failures += 1
        self._pause_s = min(_LONGEST_PAUSE_S, 2 * self._pause_s or _FIRST_PAUSE_S)
        self._retry_at_s = self._clock() + self._pause_s * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        if not self.is_up and self._was_told:
            return
        self.is_up, self._was_told = False, True
        reason = str(error) or type(error).__name__
        LOGGER.warning(
            "The shared store does not answer (%s): limits are divided by %d gateways and nothing is shared until it "
            "is back",
            reason,
            self.num_sharing,
        )
        for participant in self._participants:
            participant.lost()
