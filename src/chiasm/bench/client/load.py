"""Sending a plan's requests from one process: at their times, or as fast as answers come."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from chiasm.bench.client.answer import Answer
from chiasm.bench.client.connection import Connection
from chiasm.bench.record import CANCELLED, TIMED_OUT, Record
from chiasm.bench.target import Target
from chiasm.bench.workload.plan import PlannedRequest

_NS = 1_000_000_000


class Bodies(Protocol):
    """Where prepared requests come from; `chiasm.bench.workload.plan.Plan`."""

    def head(self, request: PlannedRequest, host: str, prefix: str, headers: bytes) -> bytes:
        """The head of the HTTP request."""
        ...

    def body(self, request: PlannedRequest) -> memoryview:
        """Its body."""
        ...


class Wire(Protocol):
    """Where requests go; `chiasm.bench.client.pool.Pool`."""

    def send(
        self, head: bytes, body: memoryview, answer: Answer, zero_ns: int, on_connection: Callable[[Connection], None]
    ) -> None:
        """Send now; `answer` takes what comes."""
        ...


class Load:
    """The requests of one process and their records. Every request that was attempted gets one, whatever becomes of
    it.
    """

    def __init__(
        self,
        requests: Sequence[PlannedRequest],
        bodies: Bodies,
        target: Target,
        wire: Wire,
        timeout_s: float,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._requests = requests
        self._bodies = bodies
        self._wire = wire
        self._timeout_s = timeout_s
        self._clock_ns = clock_ns
        self._heads = [bodies.head(request, target.authority, target.prefix, target.headers) for request in requests]
        self._num_open = 0
        self._num_failed = 0
        self._free = asyncio.Event()
        self.records: list[Record] = []

    @property
    def num_sent(self) -> int:
        """Requests attempted so far."""
        return len(self.records)

    @property
    def num_ended(self) -> int:
        """Of them, those that have ended."""
        return len(self.records) - self._num_open

    @property
    def num_failed(self) -> int:
        """Of those that have ended, the ones without a whole answer."""
        return self._num_failed

    async def run_open(self, zero_ns: int, until: Callable[[int], Awaitable[None]]) -> None:
        """Send each request at its time after `zero_ns`, whether or not earlier ones have been answered; wait for all
        ends.
        """
        for number, request in enumerate(self._requests):
            due_ns = round(request.at_s * _NS)
            await until(zero_ns + due_ns)
            self._send(number, due_ns, zero_ns)
        await self._until_open(0)

    async def run_closed(self, zero_ns: int, concurrency: int) -> None:
        """Keep `concurrency` requests open until all have been sent; wait for all ends."""
        for number in range(len(self._requests)):
            await self._until_open(concurrency - 1)
            self._send(number, self._clock_ns() - zero_ns, zero_ns)
        await self._until_open(0)

    async def _until_open(self, at_most: int) -> None:
        """Every request ends: by its answer, or by its deadline."""
        while self._num_open > at_most:
            self._free.clear()
            await self._free.wait()

    def _send(self, number: int, due_ns: int, zero_ns: int) -> None:
        request = self._requests[number]
        record = Record(
            index=request.index,
            request_class=request.request_class,
            kind=request.kind,
            phase=request.phase,
            num_body_bytes=request.num_body_bytes,
            num_wanted_tokens=request.output_tokens,
            scheduled_ns=due_ns,
            sent_ns=self._clock_ns() - zero_ns,
        )
        self.records.append(record)
        self._num_open += 1
        flight = _Flight(self, record, zero_ns)
        loop = asyncio.get_running_loop()
        flight.timers.append(loop.call_later(self._timeout_s, flight.give_up, TIMED_OUT))
        if request.cancel_after_s is not None:
            flight.timers.append(loop.call_later(request.cancel_after_s, flight.give_up, CANCELLED))
        self._wire.send(self._heads[number], self._bodies.body(request), flight.answer, zero_ns, flight.carried_by)

    def ended(self, record: Record) -> None:
        """One of the open requests has ended."""
        self._num_open -= 1
        self._num_failed += not record.is_finished
        self._free.set()

    def now_ns(self) -> int:
        """The time."""
        return self._clock_ns()


class _Flight:
    """A request under way: its timers, and the connection that it is on."""

    def __init__(self, load: Load, record: Record, zero_ns: int) -> None:
        self._load = load
        self._zero_ns = zero_ns
        self._connection: Connection | None = None
        self.timers: list[asyncio.TimerHandle] = []
        self.answer = Answer(record, self._end)

    def carried_by(self, connection: Connection) -> None:
        self._connection = connection

    def give_up(self, outcome: str) -> None:
        if self._connection is not None:
            self._connection.abandon(self.answer, outcome)
        elif not self.answer.record.outcome:
            self.answer.fail(outcome, self._load.now_ns() - self._zero_ns)

    def _end(self) -> None:
        for timer in self.timers:
            timer.cancel()
        self._load.ended(self.answer.record)
