"""One client's connection: requests in, one after the other, with bounds on everything that a client can withhold."""

import asyncio
from collections import deque
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import httptools

from chiasm.asgi.http.call import MAX_DISCARDED_BYTES, Call, header_line

if TYPE_CHECKING:
    from starlette.types import ASGIApp

MAX_HEAD_BYTES = 512 * 2**10
_BUFFER_BYTES = 64 * 2**10
_MAX_KEPT_TARGET_BYTES = 256
_BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_HEAD_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Connection(asyncio.BufferedProtocol):
    """Parses requests and serves them in order. Made by uvicorn's server, which closes it by `shutdown`.

    An idle connection, and a request's head, end after the keep-alive time; a head of more than `MAX_HEAD_BYTES` is
    refused. Bodies are read only as far as the application asks for them (see `Call`), and after an answer only so that
    it arrives.
    """

    transport: asyncio.Transport

    def __init__(self, config: Any, server_state: Any, app_state: object, _loop: object = None) -> None:
        self._app: ASGIApp = config.loaded_app
        self._server = server_state
        self._keep_alive_s: float = config.timeout_keep_alive
        self.loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._default_headers: tuple[list[tuple[bytes, bytes]], bytes] = ([], b"")
        self._scratch = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._scratch)
        self._active: Call | None = None  # is being answered
        self._incoming: Call | None = None  # its body is still coming
        self._waiting: deque[Call] = deque()
        self._num_direct_bytes = 0  # still to come of a body that goes past the parser
        self._num_discarded = -1  # of a body that came after its answer; none does
        self._is_in_head = False
        self._num_head_bytes = 0
        self._expires_at_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_reading = True
        self._is_last = False  # the next request, or the last of those that are here, is
        self._writable: asyncio.Future[None] | None = None

    # What the transport calls.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # the one that streams get
        """Expect a request soon."""
        self.transport = transport
        self._server.connections.add(self)
        self._ends = {"client": _endpoint(transport, "peername"), "server": _endpoint(transport, "sockname")}
        self._expire_soon()
        self._tick()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever is being served."""
        self._server.connections.discard(self)
        self._waiting.clear()
        for call in (self._active, self._incoming):
            if call is not None:
                call.disconnect()
        if self._timer is not None:
            self._timer.cancel()
        self.resume_writing()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go: the body that is wanted, or the parser's buffer."""
        if not self._num_direct_bytes:
            return self._view
        rest = self._incoming.rest if self._incoming is not None else None
        return self._view[: self._num_direct_bytes] if rest is None else rest

    def buffer_updated(self, nbytes: int) -> None:
        """Take the bytes that came."""
        if self._num_discarded >= 0:
            self._num_discarded += nbytes
            if self._num_discarded > MAX_DISCARDED_BYTES:
                self.transport.close()
                return
        if self._num_direct_bytes:
            self._num_direct_bytes -= nbytes
            assert self._incoming is not None
            self._incoming.filled(nbytes)
            if not self._num_direct_bytes:
                self._parser = httptools.HttpRequestParser(self)  # the old one still waits for that body
                self.on_message_complete()
            return
        try:
            self._parser.feed_data(self._view[:nbytes])
        except httptools.HttpParserUpgrade:  # nothing is upgraded to; the request itself is served
            self._end_after_this()
        except httptools.HttpParserError:
            self._refuse(_BAD_REQUEST)
        if self._is_in_head:
            self._num_head_bytes += nbytes
            if self._num_head_bytes > MAX_HEAD_BYTES:
                self._refuse(_HEAD_TOO_LARGE)

    def eof_received(self) -> None:
        """Close: a client that has ended its side has left."""

    def pause_writing(self) -> None:
        """The client reads more slowly than we write."""
        self._writable = self.loop.create_future()

    def resume_writing(self) -> None:
        """The client has caught up."""
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    # What the parser calls.

    def on_message_begin(self) -> None:
        """A head begins; it has the keep-alive time."""
        self._is_in_head = True
        self._num_head_bytes = 0
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._expire_soon()

    def on_url(self, url: bytes) -> None:
        """A part of the target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Serve the request, or let it wait for those before it."""
        self._is_in_head = False
        self._expires_at_s = None
        keeps_alive = self._parser.should_keep_alive() and not self._is_last
        call = self._incoming = Call(self, self._scope(), keeps_alive=keeps_alive)
        self._server.total_requests += 1
        if self._active is None:
            self._start(call)
        else:
            self._waiting.append(call)
            self.pause_reading()

    def on_body(self, data: bytes) -> None:
        """A part of a body."""
        assert self._incoming is not None
        self._incoming.add(data)

    def on_message_complete(self) -> None:
        """The request is there as a whole."""
        call, self._incoming = self._incoming, None
        assert call is not None
        call.complete()
        if call.has_ended:
            self._leave(call)

    # What calls and the server need.

    def pause_reading(self) -> None:
        """Let the client wait."""
        if self._is_reading and not self.transport.is_closing():
            self._is_reading = False
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        if not self._is_reading and not self.transport.is_closing():
            self._is_reading = True
            self.transport.resume_reading()

    def receive_directly(self, call: Call, num_bytes: int) -> None:
        """Let the rest of a call's body go where the call wants it."""
        assert call is self._incoming
        self._num_direct_bytes = num_bytes

    def default_headers(self) -> bytes:
        """Headers of every response, as lines. The server replaces its list whenever something in it changes."""
        headers, lines = self._default_headers
        if headers is not self._server.default_headers:
            headers = self._server.default_headers
            lines = b"".join([header_line(name, value) for name, value in headers])
            self._default_headers = headers, lines
        return lines

    async def until_writable(self) -> None:
        """Wait while the client reads more slowly than we write."""
        while self._writable is not None:
            await asyncio.shield(self._writable)

    def ended(self, call: Call) -> None:
        """A response is complete. What is left of its request's body is read and forgotten, also before closing.

        A connection that is closed with unread bytes is reset, and the client may lose the answer. A client that waits
        to be told to continue may stop waiting at this very moment, so that its body is read, too.
        """
        if call is self._incoming:
            self._discard(call)
        else:
            self._leave(call)

    def shutdown(self) -> None:
        """Close when the request under way is answered, and its answer has arrived: see `ended`."""
        if self._num_discarded >= 0:
            self._end_after_this()
            self._say_end()
        elif self._active is None or self._active.has_ended:
            self.transport.close()
        else:
            self._end_after_this()

    def end_after_next(self) -> None:
        """Close when the next request is answered, and say so in the answer; the client connects to a successor.

        An answer whose head has left has said nothing: only the one after it closes.
        """
        self._is_last = True
        last = self._waiting[-1] if self._waiting else self._active
        if last is not None and not last.is_started:
            last.keeps_alive = False

    def _end_after_this(self) -> None:
        if self._active is not None:
            self._active.keeps_alive = False

    def _start(self, call: Call) -> None:
        self._active = call
        tasks = self._server.tasks
        call.task = self.loop.create_task(call.run(self._app, tasks))
        tasks.add(call.task)

    def _discard(self, call: Call) -> None:
        """Read what is left of a body, past the parser where its length is known; up to `MAX_DISCARDED_BYTES`."""
        self._num_discarded = 0
        self._num_direct_bytes = self._num_direct_bytes or call.num_missing
        self._expire_soon()
        if not call.keeps_alive:
            self._say_end()
        self.resume_reading()

    def _say_end(self) -> None:
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _leave(self, call: Call) -> None:
        """Go on after a call of which nothing is left."""
        self._num_discarded = -1
        if call.keeps_alive:
            self._next()
        else:
            self.transport.close()

    def _next(self) -> None:
        self._active = None
        if self._waiting:
            self._start(self._waiting.popleft())
            return
        self._expire_soon()
        self.resume_reading()

    def _refuse(self, answer: bytes) -> None:
        if not self.transport.is_closing():
            if self._num_discarded < 0:  # else the request has its answer
                self.transport.write(answer)
            self.transport.close()

    def _expire_soon(self) -> None:
        self._expires_at_s = self.loop.time() + self._keep_alive_s

    def _tick(self) -> None:
        """Close what has expired; otherwise look again when it may have, which is never too late."""
        now_s = self.loop.time()
        if self._expires_at_s is not None and now_s >= self._expires_at_s:
            self.transport.close()
        else:
            self._timer = self.loop.call_at(self._expires_at_s or now_s + self._keep_alive_s, self._tick)

    def _scope(self) -> dict[str, Any]:
        url = self._url
        path, raw_path, query = _target(url) if len(url) <= _MAX_KEPT_TARGET_BYTES else _target.__wrapped__(url)
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": self._parser.get_http_version(),
            "method": self._parser.get_method().decode("ascii"),
            "scheme": "http",
            "path": path,
            "raw_path": raw_path,
            "query_string": query,
            "root_path": "",
            "headers": self._headers,
            **self._ends,
        }


@lru_cache(maxsize=256)
def _target(url: bytes) -> tuple[str, bytes, bytes]:
    """Path, path as it was written, and query. Few are asked for again and again."""
    target = httptools.parse_url(url)
    path = target.path.decode("ascii")
    return unquote(path) if "%" in path else path, target.path, target.query or b""


def _endpoint(transport: asyncio.Transport, name: str) -> tuple[str, int] | None:
    address = transport.get_extra_info(name)
    return (str(address[0]), int(address[1])) if isinstance(address, tuple) else None
