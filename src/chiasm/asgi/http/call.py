"""One request and its response, as an ASGI application sees them."""

import http
import logging
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Message

from chiasm.asgi.limits import ON_DISCONNECT

if TYPE_CHECKING:
    import asyncio

    from chiasm.asgi.http.connection import Connection

logger = logging.getLogger(__name__)
MAX_UNREAD_BYTES = 64 * 2**10
"""Of a body that the application has not asked for, or, without a stated length, does not keep up with."""
MAX_DISCARDED_BYTES = 64 * 2**20
"""Of a body that comes after its answer. A client that sends all before it reads learns nothing otherwise."""
_MAX_JOINED_BYTES = 64 * 2**10
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_NO_BODY = frozenset({204, 304})


class Call:
    """One request. A body of known length is received into one buffer and is one message, once it is asked for."""

    def __init__(self, connection: "Connection", scope: dict[str, Any], *, keeps_alive: bool) -> None:
        self.scope = scope
        self.keeps_alive = keeps_alive and scope["http_version"] == "1.1"
        self.has_ended = False
        self.task: asyncio.Task[None] | None = None  # that runs it
        self._connection = connection
        self._num_bytes = -1  # of the body; unknown
        self._expects_continue = False
        for name, value in scope["headers"]:
            if name == b"content-length":
                self._num_bytes = int(value)
            elif name == b"expect":
                self._expects_continue = value.lower() == b"100-continue"
        self._pieces: list[bytes] = []
        self._num_received = 0
        self._buffer: bytearray | None = None
        self._is_complete = False
        self._is_delivered = False
        self._is_disconnected = False
        self._waiter: asyncio.Future[None] | None = None
        self._on_disconnect: Callable[[], None] | None = None
        scope["extensions"] = {ON_DISCONNECT: self._call_on_disconnect}
        self._start: tuple[int, list[tuple[bytes, bytes]]] | None = None
        self._is_started = False
        self._is_chunked = False
        self._num_left = -1  # bytes of the response that were announced and have not come

    async def run(self, app: ASGIApp, tasks: "set[asyncio.Task[None]]") -> None:
        """Serve the request and make sure that it gets an answer, or its connection an end.

        Takes its own task out of the server's `tasks` then: a callback of the task's would be a turn of the loop more.
        """
        try:
            try:
                await app(self.scope, self.receive, self.send)
            except Exception:
                logger.exception("An application failed")
            if not (self.has_ended or self._is_disconnected):
                await self._end_unanswered()
        finally:
            if self.task is not None:
                tasks.discard(self.task)

    async def _end_unanswered(self) -> None:
        self.keeps_alive = False
        if not self._is_started:
            await self.send({"type": "http.response.start", "status": 500, "headers": [(b"content-length", b"0")]})
            await self.send({"type": "http.response.body"})
        else:  # half an answer: the client must not take it for a whole one
            self._end()

    async def receive(self) -> Message:
        """The body, then the client's leaving."""
        connection = self._connection
        if self._expects_continue and not self._is_started:
            connection.transport.write(_CONTINUE)
        self._expects_continue = False
        if not (self._is_delivered or self._is_complete or self.has_ended):
            self._want_body()
        while not (self._is_disconnected or self.has_ended or self._has_message()):
            self._waiter = connection.loop.create_future()
            await self._waiter
        if self._is_disconnected or self.has_ended:
            return {"type": "http.disconnect"}
        body = self._taken()
        self._is_delivered = self._is_complete
        if not self._is_complete:
            connection.resume_reading()
        return {"type": "http.request", "body": body, "more_body": not self._is_complete}

    async def send(self, message: Message) -> None:
        """Write the response; its head leaves with the first bytes of its body."""
        if self._is_disconnected or self.has_ended:
            return
        if message["type"] == "http.response.start":
            self._start = (message["status"], list(message["headers"]))
            return
        body, is_last = message.get("body", b""), not message.get("more_body", False)
        if self._start is not None:
            (status, headers), self._start = self._start, None
            head = self._head(status, headers)
        else:
            head = b""
        self._write(head, body, is_last=is_last)
        if is_last:
            self._end()
        else:
            await self._connection.until_writable()

    # What the connection calls.

    @property
    def is_started(self) -> bool:
        """Whether the response's head has left."""
        return self._is_started

    @property
    def num_missing(self) -> int:
        """Bytes of the body that have not come; 0 where its length was not stated."""
        return max(0, self._num_bytes - self._num_received)

    @property
    def rest(self) -> memoryview | None:
        """Where the rest of the body goes; None when nobody wants it."""
        return None if self._buffer is None else memoryview(self._buffer)[self._num_received :]

    def filled(self, num_bytes: int) -> None:
        """So much of `rest` has come."""
        self._num_received += num_bytes

    def add(self, data: bytes) -> None:
        """A part of the body has come through the parser."""
        if self.has_ended:
            return
        self._pieces.append(data)
        self._num_received += len(data)
        if 0 <= self._num_bytes <= MAX_UNREAD_BYTES:
            return
        if sum(map(len, self._pieces)) >= MAX_UNREAD_BYTES // 2:
            self._connection.pause_reading()
        self._wake()

    def complete(self) -> None:
        """The whole body has come."""
        self._is_complete = True
        self._wake()

    def disconnect(self) -> None:
        """The client has left."""
        if self._is_disconnected:
            return
        self._is_disconnected = True
        self._wake()
        if self._on_disconnect is not None:
            self._on_disconnect()

    def _call_on_disconnect(self, callback: Callable[[], None] | None) -> None:
        self._on_disconnect = callback
        if self._is_disconnected and callback is not None:
            callback()

    def _want_body(self) -> None:
        if self._buffer is None and self._num_bytes > MAX_UNREAD_BYTES:
            self._buffer = bytearray(self._num_bytes)
            at = 0
            for piece in self._pieces:
                self._buffer[at : at + len(piece)] = piece
                at += len(piece)
            self._pieces.clear()
            self._connection.receive_directly(self, self._num_bytes - at)
        self._connection.resume_reading()

    def _has_message(self) -> bool:
        if self._is_delivered:
            return False
        return self._is_complete or (self._num_bytes < 0 and bool(self._pieces))

    def _taken(self) -> bytes | bytearray:
        if self._buffer is not None:
            buffer, self._buffer = self._buffer, None
            return buffer
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        return body

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _head(self, status: int, headers: list[tuple[bytes, bytes]]) -> bytes:
        was_not_told = self._expects_continue and not self._is_complete  # whether the body comes nobody knows
        if was_not_told or self.num_missing > MAX_DISCARDED_BYTES:
            self.keeps_alive = False
        self._num_left, self._is_chunked = -1, False
        lines = []
        for name, value in headers:
            lines.append(header_line(name, value))
            if name == b"content-length":
                self._num_left = int(value)
            elif name == b"connection" and value.lower() == b"close":
                self.keeps_alive = False
        self._frame(status, lines)
        if not self.keeps_alive:
            lines.append(b"connection: close\r\n")
        head = b"".join(lines)
        if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines):
            raise ValueError("A header has a line break")
        return b"%b%b%b\r\n" % (_status_line(status), self._connection.default_headers(), head)

    def _frame(self, status: int, lines: list[bytes]) -> None:
        """Decide how the end of the body is told."""
        has_body = self.scope["method"] != "HEAD" and status not in _NO_BODY
        if not has_body:
            self._num_left = 0
        elif self._num_left < 0:
            self._is_chunked = self.scope["http_version"] == "1.1"
            if self._is_chunked:
                lines.append(b"transfer-encoding: chunked\r\n")
            else:
                self.keeps_alive = False  # the end of the connection is the end of the body

    def _write(self, head: bytes, body: bytes, *, is_last: bool) -> None:
        if self._is_chunked:
            framed = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            data = head + framed + (b"0\r\n\r\n" if is_last else b"")
        elif self._num_left >= 0:
            if self.scope["method"] == "HEAD":
                body = b""
            self._num_left -= len(body)
            if self._num_left < 0 or (is_last and self._num_left):
                self.keeps_alive = False
                raise ValueError("A response is not as long as it says")
            data = head + body if len(body) <= _MAX_JOINED_BYTES else head
        else:
            data = head + body
        self._is_started = True
        if data:
            self._connection.transport.write(data)
        if len(body) > _MAX_JOINED_BYTES and not self._is_chunked and self._num_left >= 0:
            self._connection.transport.write(body)

    def _end(self) -> None:
        self.has_ended = True
        self._buffer = None
        self._pieces.clear()
        self.scope["extensions"] = {}  # it leads back here; without the circle nothing waits for a garbage collection
        self._wake()
        self._connection.ended(self)


def header_line(name: bytes, value: bytes) -> bytes:
    """A header as it is sent."""
    return b"%b: %b\r\n" % (name, value)


@lru_cache(maxsize=64)
def _status_line(status: int) -> bytes:
    try:
        phrase = http.HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode()
