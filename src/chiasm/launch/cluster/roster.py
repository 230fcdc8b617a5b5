"""Who a gateway has behind it, as its owner says."""

import asyncio
import logging
from contextlib import suppress

from chiasm.errors import ChiasmError
from chiasm.launch.members import Members
from chiasm.launch.processes.messages import Listed, Roster
from chiasm.routing.fleet import Fleet

logger = logging.getLogger(__name__)
_RETRY_INTERVAL_S = 0.5


class RosterKeeper:
    """Lets workers of a roster join, drain and leave. `put` and `keep` are called on one event loop."""

    def __init__(self) -> None:
        self._roster = Roster(0, {})
        self._changed = asyncio.Event()
        self._joined: dict[str, str] = {}

    def put(self, roster: Roster) -> None:
        """Take a newer roster over. They may come in any order."""
        if roster.number > self._roster.number:
            self._roster = roster
            self._changed.set()

    @property
    def encoders_wanted(self) -> int | None:
        """What the roster says."""
        return self._roster.encoders_wanted

    async def keep(self, members: Members, fleet: Fleet) -> None:
        """Keep the fleet as the roster says, until cancelled. Who does not answer is asked again and again."""
        while True:
            self._changed.clear()
            wanted = self._roster.workers
            for name, address in list(self._joined.items()):
                if name not in wanted or wanted[name].address != address:
                    del self._joined[name]
                    await members.leave(name)
            for name, listed in wanted.items():
                await self._keep_one(name, listed, members, fleet)
            with suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_INTERVAL_S):
                    await self._changed.wait()

    async def _keep_one(self, name: str, listed: Listed, members: Members, fleet: Fleet) -> None:
        if listed.is_leaving:
            if fleet.find(name) is not None:
                fleet.drain(name)
        elif name not in self._joined:
            try:
                await members.join(name, listed.address)
            except ChiasmError as error:
                logger.info("Worker %s has not joined yet: %s", name, error.message)
                return
            self._joined[name] = listed.address
            for one in members.behind(name):
                if (member := fleet.find(one)) is not None:
                    member.is_shared = True  # with the other gateways of the roster
