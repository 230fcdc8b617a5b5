"""One worker behind a listening socket, for servers elsewhere."""

import asyncio
import gc
import signal
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

import uvloop

from chiasm.connectors.registry import make_transport
from chiasm.errors import InvalidSettingError
from chiasm.launch.engine import Progress, start_worker
from chiasm.launch.processes.specs import WorkerSpec, behind_gateway, niceness_of
from chiasm.launch.server import address_of, bind, bind_unix, serve_app
from chiasm.protocol.worker import Worker
from chiasm.settings import Settings
from chiasm.settings.niceness import process_steps_back
from chiasm.settings.slices import shorten_thread_slices

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def serve_worker(
    settings: Settings,
    spec: WorkerSpec,
    progress: Progress,
    on_ready: Callable[[str], None],
    on_loop: Callable[[asyncio.AbstractEventLoop, asyncio.Event], None] | None = None,
) -> None:
    """Run a worker in this thread until SIGTERM or SIGINT; a second signal ends the drain at once.

    Args:
        settings: All sections.
        spec: The worker's name, roles and address.
        progress: Told how the start goes.
        on_ready: Called with the address once it listens.
        on_loop: Called with the event loop and the event that ends the worker.

    Raises:
        InvalidSettingError: It cannot listen there.
        EngineStartError: The model cannot be served.
    """
    settings, niceness = behind_gateway(settings), niceness_of(spec, settings)
    listener = _listener(spec.address, settings.routing.worker_token)
    try:
        transport = make_transport(settings.transfer)
        worker, _ = start_worker(settings, progress, name=spec.name, roles=spec.roles, transport=transport)
    except BaseException:
        listener.close()
        raise
    process_steps_back(niceness)  # not before: on a busy host it would not be ready in time
    gc.collect()
    gc.freeze()  # what a loaded model consists of need not be walked again and again
    shorten_thread_slices(settings.engine.short_slice_s)

    async def until_stopped() -> None:
        stop, task, loop = asyncio.Event(), asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: task.cancel() if stop.is_set() else stop.set())
        if on_loop is not None:
            on_loop(loop, stop)
        await _serve(worker, listener, settings, stop, lambda: on_ready(address_of(listener)))

    try:
        uvloop.run(until_stopped())
    except asyncio.CancelledError:
        return


async def _serve(
    worker: Worker, listener: socket.socket, settings: Settings, stop: asyncio.Event, on_ready: Callable[[], None]
) -> None:
    from chiasm.workers.server import WorkerServerLimits, create_worker_app

    limits = WorkerServerLimits(
        token=settings.routing.worker_token or None, drain_timeout_s=settings.gateway.drain_timeout_s
    )
    app = create_worker_app(worker, limits)
    try:
        await serve_app(app, app, listener, limits, stop, on_ready)
    finally:
        await worker.aclose()


def check_reachable(address: str, token: str) -> tuple[str, int] | None:
    """Host and port of an address at which a worker is to listen; None for a Unix socket's.

    Raises:
        InvalidSettingError: It is none, or others could use the worker.
    """
    kind, _, path = address.partition(":")
    if kind == "unix" and path:
        return None
    parts = urlsplit(address)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if parts.scheme != "http" or not host or port is None:
        raise InvalidSettingError(f"'{address}' is no address", hint="Use 'unix:/path' or 'http://host:port'")
    if host not in _LOOPBACK and not token:
        raise InvalidSettingError(
            f"A worker on {host} without a token would answer anybody",
            hint="Set routing.worker_token, the same for workers and server",
        )
    return host, port


def _listener(address: str, token: str) -> socket.socket:
    place = check_reachable(address, token)
    return bind_unix(address.partition(":")[2]) if place is None else bind(*place)
