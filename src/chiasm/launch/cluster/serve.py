"""A server on a cluster: its workers and its gateways are placed and kept from here, and end with this process."""

import asyncio
import itertools
import logging
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import uvloop

from chiasm.launch.cluster.connection import joined
from chiasm.launch.cluster.encoders import ScaledEncoders
from chiasm.launch.cluster.fronts import Fronts, Where
from chiasm.launch.cluster.placement import assignment_of, cluster_specs, gateway_specs, room_of
from chiasm.launch.cluster.scaling import Scaling, can_scale
from chiasm.launch.engine import Progress
from chiasm.launch.model import served_name
from chiasm.launch.preflight import check_gateway
from chiasm.launch.processes.messages import Listed, Roster
from chiasm.launch.processes.specs import WorkerSpec
from chiasm.launch.processes.supervisor import Supervisor
from chiasm.launch.sick import Sick
from chiasm.settings import Settings
from chiasm.settings.slices import shorten_thread_slices

if TYPE_CHECKING:
    from chiasm.launch.cluster.actor import ActorProcess

logger = logging.getLogger(__name__)
_LOOK_INTERVAL_S = 1.0
_NODE_LABEL = "ray.io/node-id"  # which Ray gives each node


class ClusterServer:
    """Places processes on the nodes of a cluster that was joined, and keeps them. Belongs to one event loop.

    Attributes:
        tasks: See `LocalServer`: none, a cluster generates.
    """

    tasks: Sequence[str] = ()

    def __init__(self, settings: Settings, specs: Sequence[WorkerSpec]) -> None:
        """Prepare to place workers of these names and roles, and the gateways. Raises `InvalidSettingError`."""
        self._settings = settings
        self._specs = specs
        self._listed: dict[str, Listed] = {}
        self._numbers = itertools.count(1)
        backoff_s = settings.routing.restart_backoff_s
        self._workers = Supervisor(specs, self._start, backoff_s)
        self._fronts = Fronts(settings, self._place, _this_node(), self._roster)
        self._scaled = ScaledEncoders(
            self._start, backoff_s, settings.routing.encoders, self._worker_up, self._worker_down
        )
        self._scaling = Scaling(settings) if can_scale(settings) else None
        self._placed: dict[str, ActorProcess] = {}

    @property
    def addresses(self) -> Sequence[str]:
        """URLs of the gateways that listen, the first one's first."""
        return self._fronts.addresses

    @property
    def address(self) -> str:
        """The first of them; empty while none listens."""
        return next(iter(self.addresses), "")

    @property
    def model(self) -> str:
        """The name under which the model is served."""
        return served_name(self._settings.engine)

    @property
    def nodes(self) -> dict[str, tuple[str, int]]:
        """The node of each process and its number there, by name."""
        return {name: (one.node, one.pid) for name, one in self._placed.items()}

    async def serve(self, stop: asyncio.Event, progress: Progress, on_ready: Callable[[], None]) -> None:
        """Place everything, and keep it until `stop` is set. Gateways drain first, then the workers end.

        Raises:
            EngineStartError: A process could not be placed or did not start; none is left.
        """
        keeping: list[asyncio.Task[None]] = []
        try:
            await asyncio.to_thread(self._fronts.reserve)
            await asyncio.to_thread(self._workers.start, progress)
            keeping.append(asyncio.create_task(self._workers.keep(self._worker_up, self._worker_down)))
            await asyncio.to_thread(self._fronts.start, progress)
            keeping.append(asyncio.create_task(self._fronts.keep()))
            keeping.append(asyncio.create_task(self._look()))
            if self._scaling is not None:
                keeping.append(asyncio.create_task(self._scale(self._scaling)))
            on_ready()
            waiting = asyncio.create_task(stop.wait())
            done, _ = await asyncio.wait([waiting, *keeping], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            for task in done - {waiting}:
                task.result()
        finally:
            await self._end(keeping)

    async def _end(self, keeping: "Sequence[asyncio.Task[None]]") -> None:
        for task in keeping:
            task.cancel()
        if keeping:
            await asyncio.wait(keeping)
        await asyncio.to_thread(self._fronts.stop)
        await self._scaled.aclose()
        await asyncio.to_thread(self._workers.stop)

    def _start(self, spec: WorkerSpec) -> "ActorProcess":
        process = self._place(spec, self._settings, Where(None))
        process.begin()
        return process

    def _place(self, spec: WorkerSpec, settings: Settings, where: Where) -> "ActorProcess":
        """Called by supervisors, on their threads."""
        from chiasm.launch.cluster.actor import ActorProcess

        process = self._placed[spec.name] = ActorProcess(
            assignment_of(spec, settings),
            room_of(spec, settings.cluster),
            _strategy(where),
            settings.cluster.place_timeout_s,
        )
        return process

    async def _worker_up(self, name: str, address: str) -> None:
        self._listed[name] = Listed(address)
        self._fronts.tell()

    async def _worker_down(self, name: str) -> None:
        self._listed.pop(name, None)
        self._placed.pop(name, None)
        self._fronts.tell()

    def _leave(self, name: str) -> None:
        if name in self._listed:
            self._listed[name] = Listed(self._listed[name].address, is_leaving=True)
            self._fronts.tell()

    def _roster(self) -> Roster:
        wanted = self._scaling.num_wanted if self._scaling is not None else None
        return Roster(next(self._numbers), dict(self._listed), wanted)

    async def _look(self) -> None:
        """End workers that run and do not answer; their supervisors start them again."""
        sick = Sick()
        while True:
            await asyncio.sleep(_LOOK_INTERVAL_S)
            load = await self._fronts.load()
            down = {name for name, one in load.members.items() if one.state == "down"} if load is not None else set()
            for name in sick.of(down & self._listed.keys(), asyncio.get_running_loop().time()):
                logger.warning("Worker '%s' runs but does not answer", name)
                keeper = self._scaled.supervisors.get(name, self._workers)
                await asyncio.to_thread(keeper.restart, name)

    async def _scale(self, scaling: Scaling) -> None:
        cluster, fixed = self._settings.cluster, tuple(one.name for one in self._specs if one.roles == ("encode",))
        leaving: set[asyncio.Task[None]] = set()
        while True:
            await asyncio.sleep(cluster.scaling_period_s)
            if (load := await self._fronts.load()) is None:
                continue
            names = (*fixed, *self._scaled.names)
            change = scaling.decide(asyncio.get_running_loop().time(), load, names).num_wanted - len(names)
            self._fronts.tell()
            if cluster.scaling != "act":
                continue
            for _ in range(change):
                self._scaled.add()
            if change < 0 and self._scaled.names:
                task = asyncio.create_task(self._drop(self._scaled.names[-1]))
                leaving.add(task)
                task.add_done_callback(leaving.discard)

    async def _drop(self, name: str) -> None:
        await self._scaled.drop(name, self._leave, self._fronts.load, self._settings.gateway.drain_timeout_s)


def _this_node() -> str:
    from ray import get_runtime_context

    return str(get_runtime_context().get_node_id())


def _strategy(where: Where) -> Any:
    """What Ray calls it. Its word for "not there" is a wish, as is that for one node: what has no other place goes."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, NodeLabelSchedulingStrategy, NotIn

    if where.node is not None:
        return NodeAffinitySchedulingStrategy(where.node, soft=True)
    if where.others:
        return NodeLabelSchedulingStrategy({}, soft={_NODE_LABEL: NotIn(*where.others)})
    return "SPREAD"


def serve_on_cluster(settings: Settings, progress: Progress, on_ready: Callable[[ClusterServer], None]) -> None:
    """Run a server on a cluster until SIGTERM or SIGINT; a second signal ends the drain at once.

    Raises:
        InvalidSettingError: These settings cannot be served on a cluster.
        MissingExtraError: Ray is not installed.
        EngineStartError: No cluster, no room, or a process that did not start.
    """
    check_gateway(settings.gateway)
    specs = cluster_specs(settings)
    rooms = [room_of(spec, settings.cluster).cpus for spec in (*specs, *gateway_specs(settings))]
    num_more = max(0, settings.cluster.max_encoders - settings.routing.encoders)
    progress("Joining the cluster", 0.0)
    with joined(settings, sum(rooms) + num_more * settings.cluster.encode_cpus) as here:
        server = ClusterServer(here, specs)
        shorten_thread_slices(settings.engine.short_slice_s)
        with suppress(asyncio.CancelledError):
            uvloop.run(_until_signal(server, progress, on_ready))


async def _until_signal(server: ClusterServer, progress: Progress, on_ready: Callable[[ClusterServer], None]) -> None:
    stop, task, loop = asyncio.Event(), asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: task.cancel() if stop.is_set() else stop.set())
    await server.serve(stop, progress, lambda: on_ready(server))
