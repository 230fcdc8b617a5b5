"""Worker processes to kill, under the supervisor that a server has."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from chiasm.faults.watch import Watch, WatchedRemote
from chiasm.launch.crew import embedded_spawner
from chiasm.launch.engine import Progress
from chiasm.launch.processes.folder import own_folder
from chiasm.launch.processes.specs import settings_of_one, specs_of
from chiasm.launch.processes.supervisor import Supervisor
from chiasm.routing.remote import RemoteWorker
from chiasm.routing.router import Router
from chiasm.settings import Settings


class Supervised:
    """The processes of one fleet; those that end start again.

    Attributes:
        killed: Worker names by the numbers of processes that were killed on purpose.
    """

    def __init__(self, supervisor: Supervisor, router: Router, watch: Watch) -> None:
        self._supervisor = supervisor
        self._router = router
        self._watch = watch
        self.killed: dict[int, str] = {}

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, settings: Settings, router: Router, watch: Watch, progress: Progress
    ) -> AsyncIterator["Supervised"]:
        """Start the processes of a topology, and let them join the router as they come and go."""
        specs = specs_of(settings.routing)
        async with AsyncExitStack() as closing:
            folder = closing.enter_context(own_folder())
            spawn = embedded_spawner(settings_of_one(settings, len(specs)), folder)
            supervisor = Supervisor(specs, spawn, settings.routing.restart_backoff_s)
            closing.push_async_callback(asyncio.to_thread, supervisor.stop)
            await asyncio.to_thread(supervisor.start, progress)
            made = cls(supervisor, router, watch)
            keeping = asyncio.create_task(supervisor.keep(made._join, made._leave))
            closing.push_async_callback(asyncio.wait, [keeping])
            closing.callback(keeping.cancel)
            yield made

    @property
    def pids(self) -> dict[str, int]:
        """Process numbers by worker."""
        return self._supervisor.pids

    def pause(self, worker: str) -> None:
        """See `Processes`."""
        os.kill(self.pids[worker], signal.SIGSTOP)

    def kill(self, worker: str) -> None:
        """See `Processes`."""
        pid = self.pids[worker]
        self.killed[pid] = worker
        os.kill(pid, signal.SIGKILL)

    async def _join(self, name: str, address: str) -> None:
        worker = await RemoteWorker.connect(address)
        try:
            self._router.fleet.add(name, WatchedRemote(name, worker, self._watch))
        except BaseException:
            await worker.aclose()
            raise

    async def _leave(self, name: str) -> None:
        try:
            worker = self._router.fleet.remove(name)
        except KeyError:
            return
        await worker.aclose()
