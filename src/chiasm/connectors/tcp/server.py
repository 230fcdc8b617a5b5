"""The producer's end: one thread accepts, one per connection answers."""

import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Lock, Thread

from chiasm.connectors.tcp import wire
from chiasm.errors import InvalidSettingError

logger = logging.getLogger(__name__)
MAX_CONNECTIONS = 64
IDLE_S = 30.0
"""Time after which a connection without requests is closed; consumers give theirs up earlier."""
_JOIN_S = 5.0
_RETRY_S = 1.0  # after a failure to accept, for example when too many files are open


class Server:
    """Answers requests for tensors with `find(token)`. Connections beyond `MAX_CONNECTIONS` are closed at once."""

    def __init__(
        self,
        host: str,
        timeout_s: float,
        find: Callable[[bytes], bytes | None],
        release: Callable[[bytes], None],
    ) -> None:
        self._timeout_s = timeout_s
        self._find = find
        self._release = release
        self._listener = _listen(host)
        self.host, self.port = self._listener.getsockname()[:2]
        self._lock = Lock()
        self._closing = Event()
        self._connections: dict[socket.socket, Thread] = {}
        self._thread = Thread(target=self._accept, name="chiasm-transfer", daemon=True)
        self._thread.start()

    @property
    def num_connections(self) -> int:
        """Consumers connected now."""
        with self._lock:
            return len(self._connections)

    def close(self) -> None:
        """Cut all connections and end the threads."""
        with self._lock:
            self._closing.set()
            connections = dict(self._connections)
        for end in (self._listener, *connections):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for it
        for thread in (self._thread, *connections.values()):
            thread.join(_JOIN_S)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                end, _ = self._listener.accept()
            except OSError:
                if self._closing.wait(_RETRY_S):
                    return
                logger.warning("A connection for a tensor could not be accepted", exc_info=True)
                continue
            with self._lock:
                if self._closing.is_set() or len(self._connections) >= MAX_CONNECTIONS:
                    end.close()
                    continue
                thread = Thread(target=self._serve, args=(end,), name="chiasm-transfer-connection", daemon=True)
                self._connections[end] = thread
                thread.start()

    def _serve(self, end: socket.socket) -> None:
        try:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            idle_s = self._timeout_s  # a stranger who says nothing is not kept for long
            while True:
                self._answer(end, idle_s)
                idle_s = IDLE_S
        except (OSError, EOFError, ValueError):  # went away, took too long, or is no peer: it notices by itself
            pass
        finally:
            with self._lock:
                del self._connections[end]
            end.close()

    def _answer(self, end: socket.socket, idle_s: float) -> None:
        asked, token, expected_bytes = wire.receive(end, wire.REQUEST, wire.Deadline(idle_s))
        assert isinstance(token, bytes)
        data, deadline = self._find(token), wire.Deadline(self._timeout_s)
        if asked == wire.RELEASE:
            self._release(token)
            wire.send_all(end, wire.REPLY.pack(wire.MAGIC, wire.OK, 0), deadline)
        elif data is None:
            wire.send_all(end, wire.REPLY.pack(wire.MAGIC, wire.GONE, 0), deadline)
        elif len(data) != expected_bytes:
            wire.send_all(end, wire.REPLY.pack(wire.MAGIC, wire.OTHER_LENGTH, len(data)), deadline)
        else:
            wire.send_all(end, wire.REPLY.pack(wire.MAGIC, wire.OK, len(data)), deadline)
            wire.send_all(end, data, deadline)


def _listen(host: str) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server((address[0], 0), family=family, backlog=MAX_CONNECTIONS)
    except OSError as error:
        raise InvalidSettingError(
            f"transfer.host {host!r} cannot be listened on: {error.strerror}", hint="Name an address of this host"
        ) from error
    if listener.getsockname()[0] in ("0.0.0.0", "::"):  # noqa: S104 - refused
        listener.close()
        raise InvalidSettingError(
            f"transfer.host {host!r} is no address that other workers could connect to",
            hint="Name the address by which they reach this host",
        )
    return listener
