"""Who belongs to the fleet: processes of ours, workers whose addresses are given, workers that register in a folder."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from chiasm.errors import ChiasmError
from chiasm.launch.processes.folder import registered
from chiasm.routing.fleet import Fleet
from chiasm.routing.remote import RemoteWorker

logger = logging.getLogger(__name__)
_RETRY_INTERVAL_S = 1.0
_SICK_S = 30.0


class Members:
    """Lets workers join and leave. Belongs to one event loop; the tasks that call it are the caller's."""

    def __init__(self, fleet: Fleet, token: str) -> None:
        self._fleet = fleet
        self._token = token
        self._refusals: dict[str, str] = {}  # by address, of those that have tried to join

    async def join(self, name: str | None, address: str) -> None:
        """Connect to a worker and take it in, by default under its own name. Raises `ChiasmError`."""
        worker = await RemoteWorker.connect(address, token=self._token or None)
        try:
            self._fleet.add(name or worker.info.name, worker)
        except BaseException:
            await worker.aclose()
            raise

    async def leave(self, name: str) -> None:
        """Let go of a worker, ending what it still has. Harmless when it did not join."""
        try:
            worker = self._fleet.remove(name)
        except KeyError:
            return
        await worker.aclose()

    async def keep_listed(self, addresses: Iterable[str]) -> None:
        """Take in workers whose addresses are given, each as soon as it answers."""
        missing = list(dict.fromkeys(addresses))
        while missing:
            missing = [address for address in missing if not await self._joins(None, address)]
            await asyncio.sleep(_RETRY_INTERVAL_S)

    async def keep_registered(self, folder: Path) -> None:
        """Take in whoever registers in a folder, and let go of whose socket has gone from it."""
        joined: dict[str, str] = {}
        while True:
            there = registered(folder)
            for name in [name for name in joined if name not in there]:
                del joined[name]
                await self.leave(name)
            for name, address in there.items():
                if name not in joined and await self._joins(name, address):
                    joined[name] = address
            await asyncio.sleep(_RETRY_INTERVAL_S)

    async def end_the_sick(self, restart: Callable[[str], None]) -> None:
        """Call `restart` with the names of members that have been down for long: they run, but do not answer."""
        since_s: dict[str, float] = {}
        while True:
            now_s = asyncio.get_running_loop().time()
            down = {member.name for member in self._fleet.members if member.state == "down"}
            since_s = {name: since_s.get(name, now_s) for name in down}
            for name in [name for name, began_s in since_s.items() if now_s - began_s > _SICK_S]:
                logger.warning("Worker '%s' runs but has not answered for %.0f s", name, _SICK_S)
                del since_s[name]
                await asyncio.to_thread(restart, name)
            await asyncio.sleep(_RETRY_INTERVAL_S)

    async def _joins(self, name: str | None, address: str) -> bool:
        try:
            await self.join(name, address)
        except ChiasmError as error:
            if self._refusals.get(address) != error.message:  # once, not at every try
                logger.info("Worker %s did not join: %s", name or address, error.message)
            self._refusals[address] = error.message
            return False
        self._refusals.pop(address, None)
        return True
