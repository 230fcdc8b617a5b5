"""One connection, on which requests follow each other."""

import asyncio
import time
from collections.abc import Callable
from typing import cast

import httptools

from chiasm.bench.client.answer import Answer
from chiasm.bench.record import CONNECTION

Clock = Callable[[], int]


class Connection(asyncio.Protocol):
    """Sends one request at a time and hands its answer on, each part with the instant at which it was received.

    No tasks and no streams: a client that computes for long between two requests measures itself.
    """

    def __init__(self, on_free: Callable[["Connection"], None], clock_ns: Clock = time.monotonic_ns) -> None:
        self._on_free = on_free
        self._clock_ns = clock_ns
        self._parser = httptools.HttpResponseParser(self)
        self._answer: Answer | None = None
        self._zero_ns = 0
        self._now_ns = 0
        self.idle_since_ns = 0
        self.is_lost = False

    def send(self, head: bytes, body: memoryview, answer: Answer, zero_ns: int) -> None:
        """Begin a request; `zero_ns` is the zero of its record's instants."""
        assert self._answer is None, "one request at a time"
        self._answer, self._zero_ns = answer, zero_ns
        self._transport.write(head)
        self._transport.write(body)

    def abandon(self, answer: Answer, outcome: str) -> None:
        """End a request that is still open here, and with it the connection."""
        if self._answer is answer:
            self._fail(outcome)

    def close(self) -> None:
        """Close the connection; nothing is open on it."""
        self.is_lost = True
        self._transport.close()

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to write."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Note the time, then parse."""
        self._now_ns = self._clock_ns()
        if self.is_lost:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._fail(CONNECTION)

    def connection_lost(self, exc: Exception | None) -> None:
        """End what is open."""
        self._fail(CONNECTION)

    # What the parser calls.

    def on_headers_complete(self) -> None:
        """The head is there; that of an interim answer does not count."""
        if self._answer is not None and (status := self._parser.get_status_code()) >= 200:
            self._answer.head(status, self._now_ns - self._zero_ns)

    def on_body(self, data: bytes) -> None:
        """A part of the body."""
        if self._answer is not None:
            self._answer.body(data, self._now_ns - self._zero_ns)

    def on_message_complete(self) -> None:
        """The answer is there as a whole."""
        answer = self._answer
        if answer is None or not answer.record.status:
            return
        self._answer = None
        self.idle_since_ns = self._now_ns
        answer.complete(self._now_ns - self._zero_ns)
        if self._parser.should_keep_alive() and not self._transport.get_write_buffer_size():
            self._on_free(self)
        else:
            self.close()

    def _fail(self, outcome: str) -> None:
        self.is_lost = True
        self._transport.abort()
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.fail(outcome, self._clock_ns() - self._zero_ns)
