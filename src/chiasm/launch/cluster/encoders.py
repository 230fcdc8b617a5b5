"""Encoders that come and go: each has a supervisor of its own, and is drained before it ends."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from chiasm.errors import ChiasmError
from chiasm.launch.processes.base import Spawn
from chiasm.launch.processes.messages import Load
from chiasm.launch.processes.specs import WorkerSpec
from chiasm.launch.processes.supervisor import OnDown, OnUp, Supervisor

logger = logging.getLogger(__name__)
_LOOK_INTERVAL_S = 0.2


@dataclass(frozen=True)
class _Kept:
    """One encoder: who keeps it, its first start on a thread, and what waits for that and then watches."""

    supervisor: Supervisor
    starting: "asyncio.Task[None]"
    keeping: "asyncio.Task[None]"

    async def end(self) -> None:
        """End it also while it is being started: when this returns, no thread is about to start a process."""
        await asyncio.to_thread(self.supervisor.stop)
        await asyncio.wait([self.starting])
        if self.starting.exception() is None:  # else the other one ends by itself
            self.keeping.cancel()
        await asyncio.wait([self.keeping])


class ScaledEncoders:
    """Those beyond the ones that are always there. Belongs to one event loop."""

    def __init__(self, spawn: Spawn, restart_backoff_s: float, num_fixed: int, on_up: OnUp, on_down: OnDown) -> None:
        """Begin with none; names count up from `num_fixed`. `on_up` and `on_down` are a supervisor's."""
        self._spawn = spawn
        self._restart_backoff_s = restart_backoff_s
        self._next = num_fixed
        self._on_up = on_up
        self._on_down = on_down
        self._kept: dict[str, _Kept] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Those there are, oldest first, also while they start."""
        return tuple(self._kept)

    @property
    def supervisors(self) -> dict[str, Supervisor]:
        """Who keeps them, by name."""
        return {name: one.supervisor for name, one in self._kept.items()}

    def add(self) -> str:
        """Have one more; returns its name at once, `on_up` is called when it listens."""
        spec = WorkerSpec(name=f"encode-{self._next}", roles=("encode",))
        self._next += 1
        supervisor = Supervisor([spec], self._spawn, self._restart_backoff_s)
        starting = asyncio.create_task(asyncio.to_thread(supervisor.start, lambda _what, _share: None))
        keeping = asyncio.create_task(self._keep(spec.name, supervisor, starting))
        self._kept[spec.name] = _Kept(supervisor, starting, keeping)
        return spec.name

    async def drop(
        self, name: str, leave: Callable[[str], None], load: Callable[[], Awaitable[Load | None]], timeout_s: float
    ) -> None:
        """End one when nothing is under way there.

        Args:
            name: One of `names`.
            leave: Tells the gateway to give it no more work.
            load: What the gateway has under way.
            timeout_s: When it ends in any case; its own drain comes on top.
        """
        kept = self._kept.pop(name)
        leave(name)
        try:
            async with asyncio.timeout(timeout_s):
                while not _is_idle(await load(), name):  # noqa: ASYNC110 - the gateway is asked over the network
                    await asyncio.sleep(_LOOK_INTERVAL_S)
        except TimeoutError:
            logger.warning("Encoder '%s' still has work after %.0f s", name, timeout_s)
        await kept.end()
        await self._on_down(name)

    async def aclose(self) -> None:
        """End all at once."""
        kept, self._kept = self._kept, {}
        await asyncio.gather(*(one.end() for one in kept.values()))

    async def _keep(self, name: str, supervisor: Supervisor, starting: "asyncio.Task[None]") -> None:
        try:
            await asyncio.shield(starting)
        except ChiasmError as error:  # the next decision may want another
            if self._kept.pop(name, None) is not None:
                logger.warning("Encoder '%s' did not start: %s", name, error)
            return
        if name in self._kept:  # else it is dropped already, and nobody shall hear of it
            await supervisor.keep(self._on_up, self._on_down)


def _is_idle(load: Load | None, name: str) -> bool:
    """Whether the gateway has heard that it leaves and has nothing there."""
    if load is None:
        return False
    member = load.members.get(name)
    return member is None or (member.state != "ready" and not member.num_open)
