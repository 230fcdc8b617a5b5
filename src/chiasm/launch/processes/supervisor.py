"""Keeps a topology's processes running: those that end are started again, after a pause that grows."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from chiasm.errors import ChiasmError, EngineStartError
from chiasm.launch.processes.base import Process, Spawn
from chiasm.launch.processes.specs import WorkerSpec

logger = logging.getLogger(__name__)
_MAX_BACKOFF_S = 60.0
_STABLE_S = 60.0  # a process that ran this long starts again with the first, short pause
_TERMINATE_TIMEOUT_S = 15.0

Progress = Callable[[str, float], None]
OnUp = Callable[[str, str], Awaitable[None]]
OnDown = Callable[[str], Awaitable[None]]


class Supervisor:
    """Owns the worker processes of one server.

    `start` blocks until all are ready. `keep` then watches them on an event loop and tells `on_up` and `on_down` about
    each that comes and goes, the first ones included. `stop` ends them all; it may be called at any time.
    """

    def __init__(self, specs: Sequence[WorkerSpec], spawn: Spawn, restart_backoff_s: float) -> None:
        """Prepare to start `specs`; `restart_backoff_s` is the first pause before one that ended starts again."""
        self._specs = specs
        self._spawn = spawn
        self._restart_backoff_s = restart_backoff_s
        self._processes: dict[str, Process] = {}
        self._is_stopping = False
        self._renewed: set[str] = set()  # ended as asked, and not started again yet
        self.num_restarts = 0

    @property
    def pids(self) -> dict[str, int]:
        """Process numbers by worker name, of those that run."""
        return {name: process.pid for name, process in self._processes.items() if process.is_alive}

    def start(self, progress: Progress) -> None:
        """Start all at once and wait for them. When one fails, none stays. Raises `EngineStartError`."""
        try:
            for spec in self._specs:
                self._begin(spec)
            for number, process in enumerate(self._processes.values()):
                process.wait_ready(_part(progress, number, len(self._specs)))
        except BaseException:
            self.stop()
            raise

    async def keep(self, on_up: OnUp, on_down: OnDown) -> None:
        """Watch all processes until cancelled. `on_up` gets name and address, `on_down` the name."""
        async with asyncio.TaskGroup() as group:
            for spec in self._specs:
                group.create_task(self._keep_one(spec, on_up, on_down))

    def restart(self, name: str) -> None:
        """End a process that does not answer any more; `keep` starts it again."""
        if name in self._processes:
            self._processes[name].kill()

    async def renew(self, name: str) -> None:
        """Have a process end, in its own time if that is short; `keep` then starts it again without a pause."""
        process = self._processes[name]
        self._renewed.add(name)
        process.terminate()
        try:
            async with asyncio.timeout(_TERMINATE_TIMEOUT_S):
                await process.ended()
        except TimeoutError:
            logger.warning("Worker %s did not end in time and is killed", name)
            await asyncio.to_thread(process.kill)  # a server of vLLM gets some seconds to tidy up

    def stop(self) -> None:
        """Ask all to end, and end those that do not; blocks."""
        self._is_stopping = True
        processes = list(self._processes.values())  # another thread may be adding one, and ends it itself
        for process in processes:
            process.terminate()
        deadline_s = time.monotonic() + _TERMINATE_TIMEOUT_S
        for process in processes:
            if not process.wait(max(0.0, deadline_s - time.monotonic())):
                logger.warning("Worker %s did not end in time and is killed", process.name)
                process.kill()

    def _begin(self, spec: WorkerSpec) -> Process:
        """Start a process that `stop` finds, or end it where `stop` has looked already. Raises `EngineStartError`."""
        process = self._processes[spec.name] = self._spawn(spec)
        if self._is_stopping:
            process.kill()
            raise EngineStartError(f"Worker {spec.name} is not wanted any more")
        return process

    async def _keep_one(self, spec: WorkerSpec, on_up: OnUp, on_down: OnDown) -> None:
        backoff_s = self._restart_backoff_s
        while not self._is_stopping:
            process = self._processes[spec.name]
            logger.info("Worker %s runs in process %d", spec.name, process.pid)
            try:
                await on_up(spec.name, process.address)
            except ChiasmError as error:
                logger.warning("Worker %s cannot be used: %s", spec.name, error)
            await process.ended()
            process.kill()  # takes note of its end
            await on_down(spec.name)
            if time.monotonic() - process.started_s > _STABLE_S:
                backoff_s = self._restart_backoff_s
            backoff_s = await self._start_again(spec, backoff_s)

    async def _start_again(self, spec: WorkerSpec, backoff_s: float) -> float:
        """Start a worker until it is up; returns the pause before the next time."""
        while not self._is_stopping:
            if spec.name in self._renewed:
                self._renewed.discard(spec.name)
                logger.info("Worker %s has ended as asked and starts again", spec.name)
            else:
                logger.warning("Worker %s has ended; it starts again in %.1f s", spec.name, backoff_s)
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)
            self.num_restarts += 1
            try:
                process = await asyncio.to_thread(self._begin, spec)
                await asyncio.to_thread(process.wait_ready, _ignore)
                break
            except (ChiasmError, OSError) as error:  # the system may have no room for a process at this moment
                logger.error("Worker %s: %s", spec.name, error)
        return backoff_s


def _part(progress: Progress, number: int, total: int) -> Progress:
    return lambda what, share: progress(what, (number + share) / total)


def _ignore(_what: str, _share: float) -> None:
    """Nobody looks at the progress of a restart."""
