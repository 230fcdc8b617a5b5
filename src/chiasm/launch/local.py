"""One machine: settings to a model, in this process or in others, a gateway and a listening socket."""

import asyncio
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress

import uvloop
from starlette.types import ASGIApp

from chiasm import __version__
from chiasm.gateway import create_app
from chiasm.gateway.policy import policy_of
from chiasm.gateway.state import Gateway, Ingest
from chiasm.launch.backend import Backend
from chiasm.launch.compiled import log_compiled
from chiasm.launch.engine import Progress, start_worker
from chiasm.launch.linking import linked
from chiasm.launch.memory import settle
from chiasm.launch.pooling import PoolingInProcess, wants_pooling
from chiasm.launch.preflight import check_backend, check_gateway
from chiasm.launch.server import address_of, bind, serve_app
from chiasm.launch.succession.handover import Handover, Inheritance, own_command
from chiasm.launch.succession.keeper import become_keeper
from chiasm.media.ingest import MediaIngest
from chiasm.observability.trace_export import TraceExporter
from chiasm.protocol.fleet import Renewable
from chiasm.protocol.worker import Worker
from chiasm.settings import ObservabilitySettings, Settings
from chiasm.settings.slices import shorten_thread_slices
from chiasm.sharing.registry import make_store
from chiasm.tenancy.watch import watch_keys_file

_START_TIMEOUT_S = 150.0
_STOP_TIMEOUT_S = 60.0


class InProcess:
    """A `Backend` with one worker in this process."""

    def __init__(self, settings: Settings, progress: Progress) -> None:
        """Load the model. Raises `MissingExtraError` or `EngineStartError`."""
        self._media = settings.media
        self._worker, self._preparer = start_worker(settings, progress)

    @property
    def model(self) -> str:
        """See `Backend`."""
        return self._worker.info.model

    @property
    def takes_images(self) -> bool:
        """See `Backend`."""
        return self._worker.info.takes_images

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[tuple[Worker, Ingest]]:
        """See `Backend`."""
        ingest = MediaIngest(self._media, self._preparer)
        try:
            yield self._worker, ingest
        finally:
            await ingest.aclose()
            await self._worker.aclose()


def start_backend(settings: Settings, progress: Progress) -> Backend:
    """Start what the topology says.

    Raises:
        MissingExtraError, InvalidSettingError, EngineStartError: It cannot be started.
        AdapterError: An adapter that is to be there from the start is not.
    """
    log_compiled(settings)
    check_backend(settings)
    if settings.engine.kind == "vllm":
        from chiasm.launch.fleet import WorkerFleet
        from chiasm.launch.vllm.crew import VllmCrew

        return WorkerFleet(settings, progress, VllmCrew(settings))
    if wants_pooling(settings):
        return PoolingInProcess(settings, progress)
    if settings.routing.topology == "local":
        return InProcess(settings, progress)
    from chiasm.launch.fleet import WorkerFleet

    return WorkerFleet(settings, progress)


Start = Callable[[Settings, Progress], Backend]


class LocalServer:
    """A model behind HTTP, not yet listening. Binding and loading happen in the constructor.

    Attributes:
        address: URL of the server, as seen from this machine.
        gateway: Its state while it serves.
        listener: What it listens on.
        handover: How it is replaced; None where it is a part of another program.
    """

    def __init__(
        self,
        settings: Settings,
        progress: Progress,
        start: Start = start_backend,
        listener: socket.socket | None = None,
    ) -> None:
        """Take the port, then load the model.

        `start` makes what is behind the gateway; `listener` is what to listen on, where it is bound already.

        Raises:
            InvalidSettingError: The address cannot be listened on, or a file of the gateway's cannot be used.
            MissingExtraError: The embedded engine's packages are not installed.
            EngineStartError: The model cannot be served.
        """
        check_gateway(settings.gateway)
        self._settings = settings
        self._traces = _exporter(settings.observability)
        self.gateway: Gateway | None = None
        self.handover: Handover | None = None
        self._store = make_store(settings.gateway)
        self.listener = listener or bind(settings.gateway.host, settings.gateway.port)
        self.address = address_of(self.listener)
        try:
            self._backend = start(settings, progress)
        except BaseException:
            self.listener.close()
            raise

    @property
    def model(self) -> str:
        """The name under which the model is served."""
        return self._backend.model

    @property
    def addresses(self) -> Sequence[str]:
        """That of the one gateway that it is."""
        return (self.address,)

    @property
    def takes_images(self) -> bool:
        """Whether the model has eyes."""
        return self._backend.takes_images

    @property
    def tasks(self) -> Sequence[str]:
        """What the model does other than generating; empty where it generates."""
        return self._backend.tasks if isinstance(self._backend, PoolingInProcess) else ()

    async def serve(self, stop: asyncio.Event, on_ready: Callable[[], None]) -> None:
        """Serve until `stop` is set; drains, then closes everything. May be called once."""
        linking = linked(self._store, self._backend, self._settings.gateway.store_gateways)
        async with linking as link, self._backend.opened() as (worker, ingest):
            app = create_app(
                worker,
                ingest,
                self._settings.gateway,
                self._settings.pooling,
                policy_of(self._settings),
                self._settings.adapters,
                link,
            )
            gateway = self.gateway = app.state.gateway
            gateway.renewable = self._backend if isinstance(self._backend, Renewable) else None
            await gateway.adapters.preload(self._settings.adapters)
            await link.round()  # so that the first requests meet shared limits
            watching = asyncio.create_task(watch_keys_file(gateway.tenants, gateway.audit.record))
            exporting = asyncio.create_task(self._export_traces(gateway))
            try:
                await self._serve(app, gateway, stop, on_ready)
            finally:
                watching.cancel()
                exporting.cancel()
                await asyncio.wait([exporting])
                gateway.audit.close()

    async def _serve(self, app: ASGIApp, gateway: Gateway, stop: asyncio.Event, on_ready: Callable[[], None]) -> None:
        handed_over = None
        if self.handover is not None:
            gateway.replaceable, handed_over = self.handover, self.handover.is_over
        await serve_app(app, gateway, self.listener, self._settings.gateway, stop, on_ready, handed_over)

    async def _export_traces(self, gateway: Gateway) -> None:
        if self._traces is not None:
            gateway.tracing.exporter = self._traces
            self._traces.count = gateway.metrics.traced
            await self._traces.run()


def _exporter(settings: ObservabilitySettings) -> TraceExporter | None:
    if not settings.otlp_endpoint:
        return None
    return TraceExporter(settings.otlp_endpoint, settings.trace_share, __version__)


def serve(
    settings: Settings,
    progress: Progress,
    on_ready: Callable[[LocalServer], None],
    inheritance: Inheritance | None = None,
) -> None:
    """Run a server in this thread until SIGTERM or SIGINT; a second signal ends the drain at once.

    SIGUSR2 starts a successor. Where this server has started one that took over, it becomes its keeper and does not
    return. `inheritance` is what a successor has got.
    """
    server = LocalServer(settings, progress, listener=inheritance.listener if inheritance is not None else None)
    channel = inheritance.channel if inheritance is not None else None
    handover = server.handover = Handover(server.listener, own_command(), channel)
    settle()
    shorten_thread_slices(settings.engine.short_slice_s)
    try:
        uvloop.run(_until_signal(server, handover, on_ready))
    except asyncio.CancelledError:
        return
    if handover.successor is not None:
        become_keeper(handover.successor, handover.listener, handover.command)


async def _until_signal(server: LocalServer, handover: Handover, on_ready: Callable[[LocalServer], None]) -> None:
    """Serve until a signal or a successor; a signal is meant for both. Before the server is ready it ends at once."""
    stop, is_ready, loop = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None

    def end(number: int) -> None:
        handover.pass_on(number)
        if stop.is_set() or not is_ready.is_set():  # nothing to drain
            task.cancel()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, number)
    loop.add_signal_handler(signal.SIGUSR2, handover.replace_if_idle)
    following = asyncio.create_task(handover.run(stop))

    def ready() -> None:
        is_ready.set()
        on_ready(server)
        handover.ready()

    try:
        await server.serve(stop, ready)
    finally:
        following.cancel()
        await handover.aclose()


@contextmanager
def background_server(settings: Settings, progress: Progress) -> Iterator[LocalServer]:
    """Run a server in another thread inside the block, for programs that want one for themselves."""
    server = LocalServer(settings, progress)
    loop = uvloop.new_event_loop()
    stop, ready = asyncio.Event(), threading.Event()
    failures: list[Exception] = []

    def run() -> None:
        shorten_thread_slices(settings.engine.short_slice_s)
        try:
            loop.run_until_complete(server.serve(stop, ready.set))
        except Exception as error:  # noqa: BLE001 - raised again where the server was asked for
            failures.append(error)
        finally:
            ready.set()
            loop.close()

    thread = threading.Thread(target=run, name="chiasm-server", daemon=True)
    thread.start()
    try:
        ready.wait(_START_TIMEOUT_S)
        if failures:
            server.listener.close()
            raise failures[0]
        yield server
    finally:
        with suppress(RuntimeError):  # it has ended by itself
            loop.call_soon_threadsafe(stop.set)
        thread.join(_STOP_TIMEOUT_S)
