"""Connections to one server, kept alive between requests."""

import asyncio
import errno
import ssl
import time
from collections.abc import Callable

from chiasm.bench.client.answer import Answer
from chiasm.bench.client.connection import Connection
from chiasm.bench.record import CLIENT_LIMIT, CONNECTION
from chiasm.bench.target import Target

_KEEP_ALIVE_NS = 3_000_000_000
"""Below the 5 s after which many servers close: a connection must not be used again while it ends."""

_NO_SOCKET = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS)


class Pool:
    """Hands requests to free connections and opens further ones without a limit: an open loop has none."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._ssl = ssl.create_default_context() if target.is_tls else None
        self._idle: list[Connection] = []
        self._connecting: set[asyncio.Task[None]] = set()

    def send(
        self, head: bytes, body: memoryview, answer: Answer, zero_ns: int, on_connection: Callable[[Connection], None]
    ) -> None:
        """Send now, or as soon as a new connection stands; `on_connection` tells which one carries the request."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_lost and time.monotonic_ns() - connection.idle_since_ns < _KEEP_ALIVE_NS:
                connection.send(head, body, answer, zero_ns)
                on_connection(connection)
                return
            connection.close()
        task = asyncio.get_running_loop().create_task(self._connect(head, body, answer, zero_ns, on_connection))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def aclose(self) -> None:
        """Close what is idle, and give up what is being connected."""
        for task in list(self._connecting):
            task.cancel()
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        await asyncio.sleep(0)

    async def _connect(
        self, head: bytes, body: memoryview, answer: Answer, zero_ns: int, on_connection: Callable[[Connection], None]
    ) -> None:
        target = self._target
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(self._idle.append), target.host, target.port, ssl=self._ssl
            )
        except OSError as error:
            if not answer.record.outcome:
                outcome = CLIENT_LIMIT if error.errno in _NO_SOCKET else CONNECTION
                answer.fail(outcome, time.monotonic_ns() - zero_ns)
            return
        if answer.record.outcome:  # it was given up while the connection was made
            connection.close()
            return
        connection.send(head, body, answer, zero_ns)
        on_connection(connection)
