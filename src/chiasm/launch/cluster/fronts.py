"""The gateways of a cluster: each on its node and port, told the same rosters, their loads seen as one."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from chiasm.launch.cluster.placement import as_gateway, gateway_specs
from chiasm.launch.engine import Progress
from chiasm.launch.processes.messages import Load, MemberLoad, Roster
from chiasm.launch.processes.specs import WorkerSpec
from chiasm.launch.processes.supervisor import Supervisor
from chiasm.settings import Settings

if TYPE_CHECKING:
    from chiasm.launch.cluster.actor import ActorProcess

logger = logging.getLogger(__name__)


class Where(NamedTuple):
    """On which node of a cluster: on this one if it is there, or, without one, on none of these if there is another."""

    node: str | None
    others: tuple[str, ...] = ()


Place = Callable[[WorkerSpec, Settings, Where], "ActorProcess"]
"""Asks for a place for a process with these settings."""


class Fronts:
    """Places gateways, the first one on the node of `chiasm serve`, and keeps them. Belongs to one event loop."""

    def __init__(self, settings: Settings, place: Place, here: str, roster: Callable[[], Roster]) -> None:
        """Prepare; `here` is the node of `chiasm serve`, `roster` says whom a gateway has behind it now."""
        self._settings = settings
        self._place = place
        self._roster = roster
        specs = gateway_specs(settings)
        self._numbers = {spec.name: number for number, spec in enumerate(specs)}
        self._homes = {specs[0].name: here}
        self._reserved: dict[str, ActorProcess] = {}
        self._there: dict[str, ActorProcess] = {}
        self._known: dict[str, str] = {}
        self._supervisor = Supervisor(specs, self._spawn, settings.routing.restart_backoff_s)
        self._listening: dict[str, str] = {}

    @property
    def addresses(self) -> list[str]:
        """URLs of those that listen, in order."""
        return [self._listening[name] for name in self._numbers if name in self._listening]

    def reserve(self) -> None:
        """Keep places before workers take all there is, each elsewhere. Blocks. Raises `EngineStartError`."""
        for name in self._numbers:
            gateway = self._reserved[name] = self._placed(name)
            gateway.wait_placed()
            self._homes[name] = gateway.node

    def start(self, progress: Progress) -> None:
        """Start all, with the roster of then. Blocks. Raises `EngineStartError`."""
        self._supervisor.start(progress)
        self._listening = {name: one.address for name, one in self._there.items()}

    async def keep(self) -> None:
        """Start those that end again, where they were if that is there, until cancelled."""
        await self._supervisor.keep(self._up, self._down)

    def stop(self) -> None:
        """Let all drain and end. Blocks."""
        self._supervisor.stop()
        for gateway in self._reserved.values():  # never started
            gateway.kill()

    def tell(self) -> None:
        """Say to all whom they have behind them."""
        roster = self._roster()
        for gateway in list(self._there.values()):
            gateway.tell(roster)

    async def load(self) -> Load | None:
        """What all that listen have under way; None where one of them does not say."""
        listening = [self._there[name] for name in self._listening]
        return merged(await asyncio.gather(*(one.load() for one in listening)))

    def _spawn(self, spec: WorkerSpec) -> "ActorProcess":
        gateway = self._reserved.pop(spec.name, None) or self._placed(spec.name)
        self._there[spec.name] = gateway
        gateway.begin()  # all at once, whatever the order in which they are waited for
        gateway.tell(self._roster())
        return gateway

    def _placed(self, name: str) -> "ActorProcess":
        where = Where(self._homes.get(name), tuple(self._homes.values()))
        return self._place(WorkerSpec(name=name, roles=()), as_gateway(self._settings, self._numbers[name]), where)

    async def _up(self, name: str, address: str) -> None:
        if self._known.setdefault(name, address) != address:
            logger.warning("Gateway '%s' has moved from %s to %s", name, self._known[name], address)
        self._known[name] = self._listening[name] = address
        self.tell()

    async def _down(self, name: str) -> None:
        """Its supervisor places it again, with the roster of then."""
        self._listening.pop(name, None)


def merged(loads: Sequence[Load | None]) -> Load | None:
    """What several gateways say, as if one said it.

    Predicted waits are what each has sent and what all wait for, so that they add up. A worker is down only where no
    gateway reaches it, and ready where any would send it work.
    """
    known = [load for load in loads if load is not None]
    if not known or len(known) < len(loads):
        return None
    names = dict.fromkeys(name for load in known for name in load.levels)
    levels = {name: sum(load.levels.get(name, 0.0) for load in known) for name in names}
    seen: dict[str, list[MemberLoad]] = {}
    for load in known:
        for name, member in load.members.items():
            seen.setdefault(name, []).append(member)
    return Load(levels, {name: _as_one(members) for name, members in seen.items()})


def _as_one(members: Sequence[MemberLoad]) -> MemberLoad:
    states = [one.state for one in members]
    state = "ready" if "ready" in states else next((one for one in states if one != "down"), "down")
    return MemberLoad(state, sum(one.num_open for one in members))
