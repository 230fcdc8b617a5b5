"""Who belongs to the fleet: processes of ours, workers whose addresses are given, workers that register in a folder."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

from chiasm.errors import ChiasmError
from chiasm.launch.processes.folder import registered
from chiasm.protocol.worker import Worker
from chiasm.routing.fleet import Fleet

logger = logging.getLogger(__name__)
_RETRY_INTERVAL_S = 1.0
_SICK_S = 30.0
_MAX_REFUSALS = 256

Connect = Callable[[str | None, str], Awaitable[Sequence[tuple[str, Worker]]]]
"""From a name, if one is given, and an address to the workers there."""


class Members:
    """Lets workers join and leave. Belongs to one event loop; the tasks that call it are the caller's."""

    def __init__(self, fleet: Fleet, connect: Connect) -> None:
        self._fleet = fleet
        self._connect = connect
        self._behind: dict[str, list[str]] = {}  # the members that one name stands for, where they are several
        self._refusals: dict[str, str] = {}  # by address, of those that tried to join last

    async def join(self, name: str | None, address: str) -> None:
        """Connect to an address and take in who is there. Raises `ChiasmError`; then nobody has joined."""
        found = await self._connect(name, address)
        joined: list[str] = []
        try:
            for worker_name, worker in found:
                self._fleet.add(worker_name, worker)
                joined.append(worker_name)
        except BaseException:
            for worker_name in joined:
                self._fleet.remove(worker_name)
            for _, worker in found:
                await worker.aclose()
            raise
        if name is not None and joined != [name]:
            self._behind[name] = joined

    def behind(self, name: str) -> list[str]:
        """The members that a name stands for, whether or not they have joined."""
        return self._behind.get(name, [name])

    async def leave(self, name: str) -> None:
        """Let go of all workers that a name stands for, ending what they still have. Harmless when none joined."""
        for worker_name in self._behind.pop(name, [name]):
            try:
                worker = self._fleet.remove(worker_name)
            except KeyError:
                continue
            await worker.aclose()

    async def keep_listed(self, listed: Iterable[tuple[str | None, str]]) -> None:
        """Take in workers whose addresses are given, each as soon as it answers."""
        missing = list(dict.fromkeys(listed))
        while missing:
            missing = [(name, address) for name, address in missing if not await self._joins(name, address)]
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
                hint = f". {error.hint}" if error.hint else ""
                logger.info("Worker %s did not join: %s%s", name or address, error.message, hint)
            self._refusals.pop(address, None)
            self._refusals[address] = error.message
            if len(self._refusals) > _MAX_REFUSALS:
                del self._refusals[next(iter(self._refusals))]
            return False
        self._refusals.pop(address, None)
        return True
