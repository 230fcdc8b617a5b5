"""Who belongs to the fleet: processes of ours, workers whose addresses are given, workers that register in a folder."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from chiasm.connectors.shm.arena import remove_leftovers
from chiasm.errors import ChiasmError
from chiasm.launch.processes.folder import host_id, is_listening, registered
from chiasm.launch.sick import Sick
from chiasm.protocol.worker import Worker
from chiasm.routing.fleet import Fleet
from chiasm.sharing.link import Link
from chiasm.sharing.presence import SharedWorker

logger = logging.getLogger(__name__)
_RETRY_INTERVAL_S = 1.0
_MAX_REFUSALS = 256

Connect = Callable[[str | None, str], Awaitable[Sequence[tuple[str, Worker]]]]
"""From a name, if one is given, and an address to the workers there."""


class Members:
    """Lets workers join and leave. Belongs to one event loop; the tasks that call it are the caller's."""

    def __init__(self, fleet: Fleet, connect: Connect, crowding: float = 0.0) -> None:
        """Begin with nobody. `crowding` says how far those that join by `join` take cores from each other."""
        self._fleet = fleet
        self._connect = connect
        self._crowding = crowding
        self._behind: dict[str, list[str]] = {}  # the members that one name stands for, where they are several
        self._refusals: dict[str, str] = {}  # by address, of those that tried to join last
        self._first_hand: dict[str, str] = {}  # names and addresses of those that were listed or have registered
        self._hearsay: dict[str, str] = {}  # likewise, of those that other gateways told of

    async def join(self, name: str | None, address: str) -> None:
        """Connect to an address and take in who is there. Raises `ChiasmError`; then nobody has joined."""
        for joined in await self._take_in(name, address):
            self._fleet.share_cores(joined, self._crowding)

    async def _take_in(self, name: str | None, address: str) -> list[str]:
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
        return joined

    def behind(self, name: str) -> list[str]:
        """The members that a name stands for, whether or not they have joined."""
        return self._behind.get(name, [name])

    def refusal(self, address: str) -> str:
        """Why who is there could not join at the last try; empty when nobody tried, or somebody joined."""
        return self._refusals.get(address, "")

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
            missing = [(name, address) for name, address in missing if not await self._is_in(name, address)]
            await asyncio.sleep(_RETRY_INTERVAL_S)

    async def keep_registered(self, folder: Path) -> None:
        """Take in whoever registers in a folder, and let go of who has gone from it, or was killed."""
        joined: dict[str, str] = {}
        sick = Sick()
        while True:
            there = registered(folder)
            gone = [name for name, address in joined.items() if address != there.get(name)]
            gone += [name for name in self._killed(joined, sick) if name not in gone]
            for name in gone:
                del joined[name]
                self._first_hand.pop(name, None)
                await self.leave(name)
            for name, address in there.items():
                if name not in joined and await self._is_in(name, address):
                    joined[name] = address
            await asyncio.sleep(_RETRY_INTERVAL_S)

    async def end_the_sick(self, restart: Callable[[str], None]) -> None:
        """Call `restart` with the names of members that have been down for long: they run, but do not answer."""
        sick = Sick()
        while True:
            down = {member.name for member in self._fleet.members if member.state == "down"}
            for name in sick.of(down, asyncio.get_running_loop().time()):
                logger.warning("Worker '%s' runs but does not answer", name)
                await asyncio.to_thread(restart, name)
            await asyncio.sleep(_RETRY_INTERVAL_S)

    async def keep_announced(self, link: Link) -> None:
        """Tell other gateways of those that were listed or have registered here, and take in whom they tell of.

        Whom nobody tells of any more leaves when it has been down for long: that a gateway is gone says nothing about
        workers. A Unix socket is of use on its own host alone.
        """
        host, sick = host_id(), Sick()
        while True:
            here = tuple(
                SharedWorker(name=name, address=address, host=host if address.startswith("unix:") else "")
                for name, address in self._first_hand.items()
            )
            link.presence = msgspec.structs.replace(link.presence, workers=here)
            told = {one.name: one for one in link.workers if one.host in ("", host)}
            for name, one in told.items():
                if self._hearsay.get(name, one.address) != one.address and self._is_down(name):
                    del self._hearsay[name]  # started again elsewhere
                    await self.leave(name)
                if name not in self._first_hand and not self._has(name) and await self._joins(name, one.address):
                    self._hearsay[name] = one.address
            untold = [name for name in self._hearsay if name not in told and name not in self._first_hand]
            for name in sick.of(filter(self._is_down, untold), asyncio.get_running_loop().time()):
                del self._hearsay[name]
                await self.leave(name)
            await asyncio.sleep(_RETRY_INTERVAL_S)

    def _has(self, name: str) -> bool:
        return all(self._fleet.find(one) is not None for one in self.behind(name))

    def _is_down(self, name: str) -> bool:
        members = [self._fleet.find(one) for one in self.behind(name)]
        return all(one is None or one.state == "down" for one in members)

    def _killed(self, joined: Mapping[str, str], sick: Sick) -> list[str]:
        """Those that have not been at work for long, and at whose sockets, which they left, nobody listens.

        What they offered in shared memory is removed: then nothing is left of what they held.
        """
        idle = [name for name in joined if not self._is_at_work(name)]
        overdue = sick.of(idle, asyncio.get_running_loop().time())
        killed = [name for name in overdue if _is_left_behind(joined[name])]
        for name in killed:
            logger.warning("Worker '%s' is taken off: nobody listens at the socket that it left", name)
        if killed:
            with suppress(OSError):
                remove_leftovers()
        return killed

    def _is_at_work(self, name: str) -> bool:
        members = [self._fleet.find(one) for one in self.behind(name)]
        return any(one is not None and one.state == "ready" for one in members)

    async def _is_in(self, name: str | None, address: str) -> bool:
        """Whether a worker that this gateway was told of at first hand belongs to the fleet, after a try at most."""
        for known, its_address in self._hearsay.items():
            if its_address == address and self._has(known):  # another gateway was quicker to tell
                self._first_hand[known] = address
                return True
        return await self._joins(name, address, is_first_hand=True)

    async def _joins(self, name: str | None, address: str, *, is_first_hand: bool = False) -> bool:
        try:
            joined = await self._take_in(name, address)
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
        for one in joined:
            if (member := self._fleet.find(one)) is not None:
                member.is_shared = True
        if is_first_hand:
            self._first_hand[name or joined[0]] = address
        return True


def _is_left_behind(address: str) -> bool:
    try:
        return not is_listening(address.removeprefix("unix:"))
    except OSError:  # it has just gone, or another process takes the path
        return False
