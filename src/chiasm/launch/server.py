"""uvicorn on a socket of ours, with a drain before its own shutdown."""

import asyncio
import contextlib
import fcntl
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Protocol

import uvicorn
from starlette.types import ASGIApp

from chiasm.asgi.admission import Admission
from chiasm.asgi.http.connection import Connection
from chiasm.errors import EngineError, InvalidSettingError
from chiasm.launch.processes.folder import is_listening
from chiasm.observability.logs import LOGGER

_BACKLOG = 2048
_ABORT_TIMEOUT_S = 2.0
_CLOSE_TIMEOUT_S = 2
_LOOK_INTERVAL_S = 0.05
_UNIX = "unix:"


class Drainable(Protocol):
    """What an application keeps of its open requests: the gateway's state, or a worker's application."""

    @property
    def admission(self) -> Admission:
        """Counts open requests."""
        ...

    def drain(self) -> None:
        """Take no new requests."""
        ...

    def abort(self) -> None:
        """End all open requests now."""
        ...


class ServingTimes(Protocol):
    """The settings of a server; `GatewaySettings` has them."""

    @property
    def keep_alive_s(self) -> float:
        """Idle time after which a connection is closed."""
        ...

    @property
    def drain_timeout_s(self) -> float:
        """How long open requests may finish."""
        ...


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


def clear_unix(path: str) -> None:
    """Remove a socket that a process left which is gone, for a server that binds its own.

    Raises:
        InvalidSettingError: Somebody listens there, or something else is there.
    """
    place = Path(path)
    if place.is_socket() and not is_listening(path):
        place.unlink()
    elif place.is_symlink() or place.exists():
        raise InvalidSettingError(f"Cannot listen on {path}: it is taken", hint="Choose another path")


def bind_unix(path: str) -> socket.socket:
    """Take a Unix socket that only this user may connect to. A socket left by a process that is gone is replaced.

    The path is this process's from now on, long before it listens: a file beside the socket is locked until it closes.

    Raises:
        InvalidSettingError: Somebody else has it, something else is there, or the folder cannot be written.
    """
    listener = _LockedSocket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.lock(path)
        if Path(path).is_socket() and not is_listening(path):
            Path(path).unlink()
        listener.bind(path)
        Path(path).chmod(0o600)  # nobody can connect before `listen`
    except BlockingIOError as error:
        listener.close()
        raise InvalidSettingError(
            f"Cannot listen on {path}: another worker has this socket", hint="Give each worker a name of its own"
        ) from error
    except OSError as error:
        listener.close()
        raise InvalidSettingError(
            f"Cannot listen on {path}: {error.strerror or error}", hint="Choose another, shorter path"
        ) from error
    listener.setblocking(False)
    return listener


class _LockedSocket(socket.socket):
    """A socket whose path no other process takes while it is open."""

    _lock: IO[bytes] | None = None

    def lock(self, path: str) -> None:
        """Take the path. Raises `BlockingIOError` when another process has it."""
        self._lock = Path(f"{path}.lock").open("ab")  # noqa: SIM115 - open as long as the socket
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        """Close, and let others have the path."""
        super().close()
        if self._lock is not None:
            self._lock.close()


def address_of(listener: socket.socket) -> str:
    """The URL, or 'unix:' and a path, that reaches the listener from this machine."""
    if listener.family == socket.AF_UNIX:
        return f"{_UNIX}{listener.getsockname()}"
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

    async def wind_down(self, stop: asyncio.Event, timeout_s: float) -> None:
        """Accept no connections, and let those that are open end with their next request; `stop` ends the wait."""
        for server in self.servers:
            server.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.server_state.connections and not stop.is_set():
                    for connection in self.server_state.connections:
                        assert isinstance(connection, Connection), "we have told uvicorn so"
                        connection.end_after_next()
                    await asyncio.sleep(_LOOK_INTERVAL_S)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve_app(
    app: ASGIApp,
    service: Drainable,
    listener: socket.socket,
    times: ServingTimes,
    stop: asyncio.Event,
    on_ready: Callable[[], None],
    handed_over: asyncio.Event | None = None,
) -> None:
    """Serve until `stop` is set, then drain; or until the socket is `handed_over` to another process.

    Draining: new requests are refused with `shutting_down` while those open finish, for at most
    `drain_timeout_s`. What is still open then ends with `shutting_down`, too. A Unix socket is gone from its folder at
    the end, since what lies there is taken for a worker.

    Handed over: nothing is refused. Connections that are open get answers as before, each until its next one has said
    that it is the last, for at most `drain_timeout_s`; then what is open still is drained.
    """
    _keep_no_list_of_generators()
    handed_over = handed_over or asyncio.Event()
    server = _Server(_configuration(app, times))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await _first(serving, server.listening)
        on_ready()
        await _first(serving, stop, handed_over)
        if handed_over.is_set():
            LOGGER.info("Handing over: %d requests open", service.admission.num_open)
            await server.wind_down(stop, times.drain_timeout_s)
        await _drain(service, times.drain_timeout_s if stop.is_set() else 0.0)
    finally:
        service.abort()  # only after a drain that was cut short is anything left
        _take_down(listener)
        server.should_exit = True
        await serving


def _keep_no_list_of_generators() -> None:
    """Let the loop not note each asynchronous generator that begins, of which a request has some.

    It would need them at its end, for those that nobody has closed. One that is forgotten before is closed as ever.
    """
    sys.set_asyncgen_hooks(firstiter=None)


def _take_down(listener: socket.socket) -> None:
    """Remove a Unix socket's file while it is surely ours: nobody takes it from a process that listens."""
    if listener.family == socket.AF_UNIX:
        Path(listener.getsockname()).unlink(missing_ok=True)


async def _first(serving: asyncio.Task[None], *events: asyncio.Event) -> None:
    """Wait for one of the events, or raise what ended the server before it."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait([serving, *waiting], return_when=asyncio.FIRST_COMPLETED)
    for one in waiting:
        one.cancel()
    if serving.done():
        raise serving.exception() or EngineError("The HTTP server ended by itself")


async def _drain(service: Drainable, timeout_s: float) -> None:
    service.drain()
    LOGGER.info("Draining: %d requests open", service.admission.num_open)
    if not await service.admission.wait_idle(timeout_s):
        LOGGER.warning("Ending %d requests after %.0f s of draining", service.admission.num_open, timeout_s)
        service.abort()
        await service.admission.wait_idle(_ABORT_TIMEOUT_S)


def _configuration(app: ASGIApp, times: ServingTimes) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="none",  # the caller's
        http=Connection,  # type: ignore[arg-type]  # uvicorn asks for no more than a protocol with `shutdown`
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=times.keep_alive_s,  # type: ignore[arg-type]  # it accepts fractions
        timeout_graceful_shutdown=_CLOSE_TIMEOUT_S,
    )
