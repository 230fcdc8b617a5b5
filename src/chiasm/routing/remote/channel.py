"""One connection to a worker, on which calls follow each other."""

import asyncio
from collections.abc import Callable
from typing import cast

import httptools

MAX_HEAD_BYTES = 64 * 2**10
_MAX_BUFFERED_BYTES = 256 * 2**10


class Channel(asyncio.Protocol):
    """Sends one request at a time and hands out its response as it comes; reading pauses when nobody takes it.

    Waiting ends with `ConnectionError` when the connection is lost or speaks no HTTP, with `TimeoutError` at `expire`.

    Attributes:
        status: Of the response; 0 until it has come.
        idle_since_s: Time on the loop's clock at which the last response was complete.
    """

    def __init__(self, on_lost: Callable[["Channel"], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_lost = on_lost
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._failure: Exception | None = None
        self._pieces: list[bytes] = []
        self._num_buffered_bytes = 0
        self._num_head_bytes = 0
        self._is_paused = False
        self._is_complete = True
        self._keeps_alive = True
        self.status = 0
        self.idle_since_s = self._loop.time()

    @property
    def is_reusable(self) -> bool:
        """Whether another call may follow: the last response was taken to its end, and the connection stands."""
        is_idle = self._is_complete and not self._pieces
        return is_idle and self._keeps_alive and self._failure is None and not self._transport.is_closing()

    def send(self, *pieces: bytes) -> None:
        """Begin a call: head and body, not copied."""
        assert self._is_complete, "one call at a time"
        self.status = self._num_head_bytes = 0
        self._is_complete = False
        self._transport.writelines(pieces)

    async def wait_status(self) -> int:
        """Wait for the head of the response."""
        while not self.status:
            await self._wait()
        return self.status

    async def read(self) -> bytes:
        """Wait for more of the body and take all there is; empty at its end."""
        while not self._pieces:
            if self._is_complete:
                return b""
            await self._wait()
        pieces, self._pieces = self._pieces, []
        self._num_buffered_bytes = 0
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def expire(self) -> None:
        """The call's time is up."""
        self._fail(TimeoutError("The call's time is up"))

    def close(self) -> None:
        """End the connection, and with it the call under way."""
        self._fail(ConnectionAbortedError("Closed"))

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to write."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Parse."""
        if self._failure is not None:
            return
        if not self.status:
            self._num_head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._fail(ConnectionResetError("The worker speaks no HTTP"))
        if not self.status and self._num_head_bytes > MAX_HEAD_BYTES:
            self._fail(ConnectionResetError("The worker's head has no end"))
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the call under way."""
        self._fail(ConnectionResetError("The connection was lost"))
        self._on_lost(self)

    # What the parser calls.

    def on_message_begin(self) -> None:
        """A response begins."""
        if self._is_complete:
            self._fail(ConnectionResetError("The worker spoke unasked"))

    def on_headers_complete(self) -> None:
        """The head is there; that of an interim response does not count."""
        status = self._parser.get_status_code()
        if self._failure is None and status >= 200:
            self.status = status
            self._keeps_alive = self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        """A part of the body."""
        if self._failure is not None:
            return
        self._pieces.append(data)
        self._num_buffered_bytes += len(data)
        if self._num_buffered_bytes > _MAX_BUFFERED_BYTES and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """The response is there as a whole."""
        if self._failure is None and self.status:
            self._is_complete = True
            self.idle_since_s = self._loop.time()

    async def _wait(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
            self._transport.abort()
            self._wake()
