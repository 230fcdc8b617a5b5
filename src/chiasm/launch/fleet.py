"""One machine, several processes: workers with their stages, and the router that makes one worker of them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager

from chiasm.errors import EngineStartError
from chiasm.gateway.state import Ingest
from chiasm.launch.crew import Crew, EmbeddedCrew
from chiasm.launch.engine import Progress
from chiasm.launch.members import Members
from chiasm.launch.model import served_name
from chiasm.launch.processes.folder import own_folder, watched_folder
from chiasm.launch.processes.supervisor import Supervisor
from chiasm.launch.renewal import Renewals
from chiasm.media.ingest import MediaIngest
from chiasm.media.spool import Spool
from chiasm.protocol.fleet import WorkerProcessState
from chiasm.protocol.worker import Worker
from chiasm.routing.costs.prior import read_prior
from chiasm.routing.fleet import Fleet
from chiasm.routing.router import Router
from chiasm.settings import Settings
from chiasm.sharing.link import Link

logger = logging.getLogger(__name__)
_JOIN_TIMEOUT_S = 120.0
_LOOK_INTERVAL_S = 0.02
_FIRST_WORD_S = 2.0
_WORD_INTERVAL_S = 15.0

Keep = Callable[[Members, Fleet], Coroutine[None, None, None]]


class WorkerFleet:
    """A `Backend` of processes. The server's own process loads neither torch nor the model."""

    def __init__(
        self, settings: Settings, progress: Progress, crew: Crew | None = None, keep: Keep | None = None
    ) -> None:
        """Start the processes and wait for them.

        Args:
            settings: All sections.
            progress: Told how the start goes.
            crew: Which workers there are; by default those of the embedded engine.
            keep: Lets further workers join and leave, until it is cancelled.

        Raises:
            InvalidSettingError: A folder or the file of costs cannot be used.
            EngineStartError: A process could not start; none is left.
        """
        self._settings = settings
        self._prior = read_prior(settings.routing.costs) if settings.routing.costs else None
        self._watched = watched_folder(settings.routing.directory) if settings.routing.directory else None
        self._crew = crew or EmbeddedCrew(settings)
        self._keep_others = keep
        self._spool = Spool(settings.media) if self._crew.shares_host else None
        self._specs = self._crew.specs
        self._renewals: Renewals | None = None
        self._members: Members | None = None
        self._has_members = asyncio.Event()
        with ExitStack() as closing:
            if self._spool is not None:
                closing.callback(self._spool.close)
            folder = closing.enter_context(own_folder())
            closing.callback(self._crew.close)
            spawn = self._crew.spawner(folder, self._spool)
            self._supervisor = Supervisor(self._specs, spawn, settings.routing.restart_backoff_s)
            closing.callback(self._supervisor.stop)
            self._supervisor.start(progress)
            self._closing = closing.pop_all()

    @property
    def model(self) -> str:
        """See `Backend`."""
        return served_name(self._settings.engine)

    @property
    def takes_images(self) -> bool:
        """See `Backend`."""
        return self._crew.takes_images

    @property
    def supervisor(self) -> Supervisor:
        """Who keeps the processes running."""
        return self._supervisor

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[tuple[Worker, Ingest]]:
        """See `Backend`. Opens when each stage has a worker that answered a real, tiny request."""
        async with AsyncExitStack() as closing:
            closing.push_async_callback(asyncio.to_thread, self._closing.close)
            router = Router(self._settings.routing, prior=self._prior)
            closing.push_async_callback(router.aclose)
            ingest = MediaIngest(self._settings.media, self._crew.preparer, spool=self._spool)
            closing.push_async_callback(ingest.aclose)
            members = self._members = Members(router.fleet, self._crew.connect, self._crew.crowding)
            self._has_members.set()
            self._renewals = Renewals(
                router.fleet,
                members,
                self._supervisor,
                drain_timeout_s=self._settings.gateway.drain_timeout_s,
                start_timeout_s=self._crew.start_timeout_s,
            )
            keeping = asyncio.create_task(self._keep(members, router.fleet))
            keeping.add_done_callback(_report_fault)
            closing.push_async_callback(_ended, keeping)
            router.start()
            await self._until_complete(router, members, keeping)
            yield router, ingest

    def processes(self) -> tuple[WorkerProcessState, ...]:
        """See `Renewable`; once opened."""
        assert self._renewals is not None, "the gateway begins after the fleet was opened"
        return self._renewals.processes()

    async def renew(self, name: str, *, alone: bool) -> WorkerProcessState:
        """See `Renewable`; once opened."""
        assert self._renewals is not None, "the gateway begins after the fleet was opened"
        return await self._renewals.renew(name, alone=alone)

    async def keep_announced(self, link: Link) -> None:
        """See `Announcing`."""
        await self._has_members.wait()
        assert self._members is not None
        await self._members.keep_announced(link)

    async def _keep(self, members: Members, fleet: Fleet) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._supervisor.keep(members.join, members.leave))
            group.create_task(members.end_the_sick(self._supervisor.restart))
            group.create_task(members.keep_listed(self._crew.listed))
            if self._keep_others is not None:
                group.create_task(self._keep_others(members, fleet))
            if self._watched is not None:
                group.create_task(members.keep_registered(self._watched))

    async def _until_complete(self, router: Router, members: Members, keeping: "asyncio.Task[None]") -> None:
        loop = asyncio.get_running_loop()
        say_at_s = loop.time() + _FIRST_WORD_S
        try:
            async with asyncio.timeout(_JOIN_TIMEOUT_S):
                while missing := self._missing(router):
                    if keeping.done():
                        keeping.result()
                    if loop.time() >= say_at_s:
                        say_at_s += _WORD_INTERVAL_S
                        there = self._states(router, members)
                        logger.info("Not listening yet: there is no %s: %s", ", ".join(missing), there)
                    await asyncio.sleep(_LOOK_INTERVAL_S)
        except TimeoutError:
            raise EngineStartError(
                f"No complete set of workers after {_JOIN_TIMEOUT_S:.0f} s, there is no "
                f"{', '.join(self._missing(router))}: {self._states(router, members)}",
                hint="Each stage (encode, prefill, decode) needs a worker; start those that are missing",
            ) from None

    def _states(self, router: Router, members: Members) -> str:
        """How far those are that have joined, and why others have not."""
        states = [f"{one.name} is {one.state}" for one in router.fleet.members]
        refused = [(name or address, members.refusal(address)) for name, address in self._crew.listed]
        states += [f"{name} did not join ({why})" for name, why in refused if why]
        return ", ".join(states) or "none has joined"

    def _missing(self, router: Router) -> list[str]:
        """Stages that nobody is ready for, and processes of ours that are not ready."""
        ready = {one.name: one.info.roles for one in router.fleet.members if one.state == "ready"}
        roles = {role for one in ready.values() for role in one}
        needed = {"prefill", "decode"} | ({"encode"} if self.takes_images else set())
        return [*sorted(needed - roles), *(spec.name for spec in self._specs if spec.name not in ready)]


def _report_fault(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (fault := task.exception()) is not None:
        logger.critical("Workers that end are not started again any more: restart the server", exc_info=fault)


async def _ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait([task])
