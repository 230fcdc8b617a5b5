"""The worker's side of one request: one stream of event batches from one or several generations."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, cast

import msgspec

from chiasm.errors import EngineError
from chiasm.protocol.generation import (
    ChoiceFinished,
    GenerateEvent,
    GenerateRequest,
    RequestFinished,
    TokenEvent,
    merge_adjacent,
)
from chiasm.protocol.worker import Worker

MIN_INTERVAL_S = 0.002
"""Between batches of a stream. Models take longer for a token, so that each is a batch; nobody can see the rest."""

_MAX_READ_AHEAD = 256
_CLOSE_TIMEOUT_S = 5.0


class Generation:
    """Reads workers' events as they come and hands them out in batches.

    Of a stream, what comes within `MIN_INTERVAL_S` of the batch before it is handed out together, joined, since every
    batch is a write to the client; the first batch and the end are never kept waiting. A reader that is behind, because
    the client reads slowly or the loop is busy, gets all that has gathered. Reading pauses at `_MAX_READ_AHEAD` events.

    Leaving the context cancels what still runs and waits until the worker has let go of it.
    """

    def __init__(self, worker: Worker, requests: Sequence[GenerateRequest], *, is_stream: bool) -> None:
        self._worker = worker
        self._requests = requests
        self._is_stream = is_stream
        self._readers: list[asyncio.Task[None]] = []
        self._ready: list[GenerateEvent] = []
        self._num_reading = len(requests)
        self._due_s = 0.0  # of the next batch
        self._is_gathering = False
        self._is_fast = False  # the next batch will not be there before it is due
        self._failure: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._taken = asyncio.Event()

    async def __aenter__(self) -> "Generation":
        for index, request in enumerate(self._requests):
            self._readers.append(asyncio.create_task(self._read(request, index * request.sampling.n)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        reading = [reader for reader in self._readers if not reader.done()]
        for reader in reading:
            reader.cancel()
        if reading:
            await asyncio.wait(reading, timeout=_CLOSE_TIMEOUT_S)

    async def next_batch(self) -> list[GenerateEvent]:
        """Return the events that have come, at least one; none once every generation has finished.

        Choices are numbered over all generations: those of the second follow those of the first. Raises what the
        worker raised, after the events before it.
        """
        loop = asyncio.get_running_loop()
        if self._is_fast:
            await self._until_due(loop)
        while not self._ready:
            if self._failure is not None:
                raise self._failure
            if self._num_reading == 0:
                return []
            self._waiter = loop.create_future()
            await self._waiter
        if self._is_stream:
            await self._until_due(loop)
        batch, self._ready = self._ready, []
        if isinstance(batch[-1], TokenEvent):
            self._due_s = loop.time() + MIN_INTERVAL_S
        self._taken.set()
        return merge_adjacent(batch) if self._is_stream and len(batch) > 1 else batch

    async def _until_due(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let more events gather; ends early when all have come."""
        pause_s = self._due_s - loop.time()
        if pause_s <= 0 or not self._num_reading or len(self._ready) >= _MAX_READ_AHEAD:
            return
        self._is_gathering, self._waiter = True, loop.create_future()
        timer = loop.call_later(pause_s, self._wake)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._is_gathering = False
            self._is_fast = bool(self._ready)

    async def _read(self, request: GenerateRequest, first_choice: int) -> None:
        is_finished = False
        try:
            async with aclosing(cast("Any", self._worker.generate(request))) as events:
                async for event in events:
                    self._ready.append(_renumbered(event, first_choice) if first_choice else event)
                    if not self._is_gathering:
                        self._wake()
                    is_finished = isinstance(event, RequestFinished)
                    if len(self._ready) >= _MAX_READ_AHEAD:
                        await self._until_taken()
            if not is_finished:
                raise EngineError("The engine's stream ended without a result")
        except Exception as error:  # noqa: BLE001 - `next_batch` raises it
            self._failure = self._failure or error
        finally:
            self._num_reading -= 1
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _until_taken(self) -> None:
        self._wake()
        self._taken.clear()
        await self._taken.wait()


def _renumbered(event: GenerateEvent, first_choice: int) -> GenerateEvent:
    if isinstance(event, TokenEvent | ChoiceFinished):
        return msgspec.structs.replace(event, choice=event.choice + first_choice)
    return event
