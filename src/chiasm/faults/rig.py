"""A fleet to break: workers with watched transports, a router, a gateway that listens, all in this process or not."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Literal

import msgspec

from chiasm.connectors.registry import make_transport
from chiasm.errors import EngineStartError
from chiasm.faults.client import Client
from chiasm.faults.fault import Tensor
from chiasm.faults.policy import EncodesElsewhere
from chiasm.faults.slow_server import SlowServer
from chiasm.faults.supervised import Supervised
from chiasm.faults.watch import Watch, WatchedTransport, WatchedWorker
from chiasm.gateway import create_app
from chiasm.gateway.state import Gateway, Ingest
from chiasm.launch.engine import Progress, start_worker
from chiasm.launch.local import InProcess
from chiasm.launch.model import model_directory, preparer_of
from chiasm.launch.processes.specs import WorkerSpec, specs_of
from chiasm.launch.server import address_of, bind, serve_app
from chiasm.media.ingest import MediaIngest
from chiasm.media.spool import Spool
from chiasm.protocol.worker import Worker
from chiasm.routing.router import Router
from chiasm.settings import Settings

Topology = Literal["e-pd", "e-p-d", "auto"]
START_TIMEOUT_S = 120.0
_TRANSFER_TIMEOUT_S = 1.0
_TTL_S = 8.0
_LOOK_INTERVAL_S = 0.01


@dataclass(kw_only=True)
class Rig:
    """A running fleet. Belongs to one event loop.

    Attributes:
        processes: Where its workers run; None when they run here.
        slow_url: Where a picture is that never arrives whole.
    """

    settings: Settings
    client: Client
    gateway: Gateway
    router: Router
    spool: Spool
    watch: Watch
    slow_url: str
    processes: Supervised | None

    def pids(self) -> dict[str, int]:
        """Process numbers by worker; empty where there are no processes."""
        return self.processes.pids if self.processes is not None else {}

    def killed_of(self, pids: Mapping[str, int]) -> set[str]:
        """Which of these workers were killed on purpose."""
        killed = self.processes.killed if self.processes is not None else {}
        return {name for name, pid in pids.items() if pid in killed}

    def is_whole(self, before: Mapping[str, int]) -> bool:
        """Whether all workers are ready, those that were killed with a new process."""
        pids = self.pids()
        is_renewed = all(pids.get(name, before[name]) != before[name] for name in self.killed_of(before))
        return is_renewed and all(name in pids for name in before) and all_ready(self.router, self.settings)


@asynccontextmanager
async def reference(settings: Settings, progress: Progress) -> AsyncIterator[Client]:
    """One whole worker, which nothing happens to."""
    backend = await asyncio.to_thread(InProcess, local_settings(settings), progress)
    async with (
        backend.opened() as (worker, ingest),
        _served(worker, ingest, settings) as (address, _),
        Client(address) as client,
    ):
        yield client


@asynccontextmanager
async def rig(settings: Settings, progress: Progress, *, in_processes: bool) -> AsyncIterator[Rig]:
    """Start the fleet that `settings.routing` describes. Raises `EngineStartError`."""
    async with AsyncExitStack() as closing:
        slow, watch = SlowServer(), Watch()
        closing.push_async_callback(slow.aclose)
        settings = _allowing(settings, await slow.start(lambda: watch.fault))
        spool = Spool(settings.media)
        closing.callback(spool.close)
        policy = EncodesElsewhere() if settings.routing.topology == "auto" else None
        router = Router(settings.routing, policy=policy)
        closing.push_async_callback(router.aclose)
        processes = None
        if in_processes:
            processes = await closing.enter_async_context(Supervised.opened(settings, router, watch, progress))
        else:
            await _add_workers(settings, router, watch, progress)
        router.start()
        await until(lambda: all_ready(router, settings), START_TIMEOUT_S, "the fleet is complete")
        ingest = MediaIngest(settings.media, preparer_of(model_directory(settings.engine.model)), spool=spool)
        closing.push_async_callback(ingest.aclose)
        address, gateway = await closing.enter_async_context(_served(router, ingest, settings))
        client = await closing.enter_async_context(Client(address))
        yield Rig(
            settings=settings,
            client=client,
            gateway=gateway,
            router=router,
            spool=spool,
            watch=watch,
            slow_url=slow.url,
            processes=processes,
        )


def local_settings(settings: Settings) -> Settings:
    """What all fleets of the matrix have in common: one thread each, short times, nobody else's port or keys."""
    replace = msgspec.structs.replace
    return replace(
        settings,
        gateway=replace(settings.gateway, host="127.0.0.1", port=0, api_keys=()),
        observability=replace(settings.observability, log_level="error"),  # what goes wrong here is meant to
        engine=replace(settings.engine, threads=settings.engine.threads or 1),
        transfer=replace(settings.transfer, timeout_s=_TRANSFER_TIMEOUT_S, ttl_s=_TTL_S),
        routing=replace(
            settings.routing,
            topology="local",
            members=(),
            directory="",
            health_interval_s=0.1,
            probe_interval_s=3600.0,
            restart_backoff_s=0.1,
            wait_for_worker_s=110.0,
        ),
    )


def with_fleet(settings: Settings, topology: Topology, **routing: object) -> Settings:
    """The settings of one fleet of the matrix."""
    chosen = msgspec.structs.replace(local_settings(settings).routing, topology=topology, **routing)
    return msgspec.structs.replace(local_settings(settings), routing=chosen)


def all_ready(router: Router, settings: Settings) -> bool:
    """Whether every worker of the topology has joined and proved that it answers."""
    ready = {one.name for one in router.fleet.members if one.state == "ready"}
    return all(spec.name in ready for spec in specs_of(settings.routing))


async def until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Wait for something to come true. Raises `EngineStartError` when it does not."""
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        if asyncio.get_running_loop().time() > deadline_s:
            raise EngineStartError(f"Not so after {timeout_s:g} s: {what}")
        await asyncio.sleep(_LOOK_INTERVAL_S)


async def _add_workers(settings: Settings, router: Router, watch: Watch, progress: Progress) -> None:
    for spec in specs_of(settings.routing):
        offers, takes = _tensors(spec, settings.routing.topology)
        transport = WatchedTransport(make_transport(settings.transfer), watch, offers, takes)
        worker, _ = await asyncio.to_thread(
            start_worker, settings, progress, name=spec.name, roles=spec.roles, transport=transport
        )
        router.fleet.add(spec.name, WatchedWorker(spec.name, worker, watch))


def _tensors(spec: WorkerSpec, topology: str) -> tuple[Tensor, Tensor]:
    """What a worker offers to others and takes from them; each kind goes one way only."""
    offers: Tensor = "embedding" if topology == "auto" or spec.roles == ("encode",) else "kv"
    takes: Tensor = "kv" if spec.roles == ("decode",) else "embedding"
    return offers, takes


def _allowing(settings: Settings, port: int) -> Settings:
    """Let pictures come from this host's slow server."""
    media = msgspec.structs.replace(
        settings.media,
        allowed_domains=("127.0.0.1",),
        allowed_private_hosts=("127.0.0.1",),
        allowed_ports=(port,),
        allow_http=True,
    )
    return msgspec.structs.replace(settings, media=media)


@asynccontextmanager
async def _served(worker: Worker, ingest: Ingest, settings: Settings) -> AsyncIterator[tuple[str, Gateway]]:
    """A gateway that listens on a free port of this host."""
    gateway = local_settings(settings).gateway
    listener, app = bind(gateway.host, gateway.port), create_app(worker, ingest, gateway)
    stop, ready = asyncio.Event(), asyncio.Event()
    serving = asyncio.create_task(serve_app(app, app.state.gateway, listener, gateway, stop, ready.set))
    try:
        await until(lambda: ready.is_set() or serving.done(), START_TIMEOUT_S, "the gateway listens")
        yield address_of(listener), app.state.gateway
    finally:
        stop.set()
        await serving
