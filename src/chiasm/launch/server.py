"""uvicorn on a socket of ours, with a drain before its own shutdown."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.applications import Starlette

from chiasm.errors import EngineError, InvalidSettingError
from chiasm.gateway.state import Gateway
from chiasm.launch.connection import BoundedConnection
from chiasm.observability.logs import LOGGER
from chiasm.settings import GatewaySettings

_BACKLOG = 2048
_ABORT_TIMEOUT_S = 2.0
_CLOSE_TIMEOUT_S = 2


def bind(host: str, port: int) -> socket.socket:
    """Take the address before anything slow is started.

    Raises:
        InvalidSettingError: The address is in use, or not this machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)  # fails now if somebody listens there, not after a model was loaded
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise InvalidSettingError(
            f"Cannot listen on {host} port {port}: {error.strerror}",
            hint="Choose another port with --port; 0 takes any that is free",
        ) from error
    listener.setblocking(False)
    return listener


def address_of(listener: socket.socket) -> str:
    """The URL that reaches the listener from this machine."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104 - a comparison; nothing is bound here
        host = "localhost"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs it, and says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve_app(
    app: Starlette,
    listener: socket.socket,
    settings: GatewaySettings,
    stop: asyncio.Event,
    on_ready: Callable[[], None],
) -> None:
    """Serve until `stop` is set, then drain.

    Draining: `/ready` turns 503 and new requests are refused with `shutting_down` while those open finish, for at most
    `drain_timeout_s`. What is still open then ends with `shutting_down`, too.
    """
    server = _Server(_configuration(app, settings))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await _first(serving, server.listening)
        on_ready()
        await _first(serving, stop)
        await _drain(app.state.gateway, settings.drain_timeout_s)
    finally:
        app.state.gateway.abort()  # only after a drain that was cut short is anything left
        server.should_exit = True
        await serving


async def _first(serving: asyncio.Task[None], event: asyncio.Event) -> None:
    """Wait for an event, or raise what ended the server before it."""
    waiting = asyncio.create_task(event.wait())
    await asyncio.wait([serving, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if serving.done():
        raise serving.exception() or EngineError("The HTTP server ended by itself")


async def _drain(gateway: Gateway, timeout_s: float) -> None:
    gateway.drain()
    LOGGER.info("Draining: %d requests open", gateway.admission.num_open)
    if not await gateway.admission.wait_idle(timeout_s):
        LOGGER.warning("Ending %d requests after %.0f s of draining", gateway.admission.num_open, timeout_s)
        gateway.abort()
        await gateway.admission.wait_idle(_ABORT_TIMEOUT_S)


def _configuration(app: Starlette, settings: GatewaySettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="none",  # the caller's
        http=BoundedConnection,
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=settings.keep_alive_s,  # type: ignore[arg-type]  # it accepts fractions
        timeout_graceful_shutdown=_CLOSE_TIMEOUT_S,
    )
