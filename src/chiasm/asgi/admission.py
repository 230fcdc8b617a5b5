"""Who may come in, who waits, who runs. Bounded, first come first served."""

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager

from chiasm.errors import OverloadedError, ShuttingDownError
from chiasm.observability.receipt import StageClock

_MAX_RETRY_AFTER_S = 60
_SMOOTHING = 0.1


class Admission:
    """Counts open requests and hands out running slots.

    A request is open from its first byte to its end; at most `max_running` + `max_queued` are. Of those, `max_running`
    hold a slot, in the order in which they asked. Fetching media happens before a slot is asked for, so that a slow
    download never keeps a text request from running.
    """

    def __init__(self, max_running: int, max_queued: int) -> None:
        self._max_running = max_running
        self._max_open = max_running + max_queued
        self._slots = asyncio.Semaphore(max_running)  # wakes in FIFO order
        self._idle = asyncio.Event()
        self._idle.set()
        self._mean_run_s = 0.0
        self.num_open = 0
        self.num_running = 0
        self.is_closed = False

    @property
    def num_queued(self) -> int:
        """Open requests without a slot: arriving, fetching media, or waiting."""
        return self.num_open - self.num_running

    @contextmanager
    def open(self) -> Iterator[None]:
        """Count a request as open inside the block.

        Raises:
            ShuttingDownError: `close` was called.
            OverloadedError: As many requests are open as may be.
        """
        if self.is_closed:
            raise ShuttingDownError("The server is shutting down", hint="Send the request to another instance")
        if self.num_open >= self._max_open:
            raise OverloadedError(
                f"{self.num_running} requests run and {self.num_queued} wait",
                retry_after_s=self._retry_after_s(),
                hint="Retry after the time in Retry-After",
            )
        self.num_open += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.num_open -= 1
            if self.num_open == 0:
                self._idle.set()

    def slot(self, clock: StageClock) -> "_Slot":
        """Wait for a running slot and hold it inside the block; cancelling the wait gives up the place.

        `clock` gets the wait as its 'queue' stage.
        """
        return _Slot(self, clock)

    async def acquire(self) -> None:
        """Wait for a slot; the block of `slot` does."""
        await self._slots.acquire()
        self.num_running += 1

    def release(self, run_s: float) -> None:
        """Give a slot back after `run_s` seconds."""
        self.num_running -= 1
        self._slots.release()
        self._mean_run_s += _SMOOTHING * (run_s - self._mean_run_s)

    def close(self) -> None:
        """Let nobody in any more; who is open may finish."""
        self.is_closed = True

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no request is open; False when the time runs out first."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def _retry_after_s(self) -> int:
        """When the queue should have moved through, from the mean time that requests have run."""
        waves = math.ceil((self.num_queued + 1) / self._max_running)
        return min(_MAX_RETRY_AFTER_S, max(1, math.ceil(waves * self._mean_run_s)))


class _Slot:
    """Holds a slot inside a block. Not a generator: every request passes through it."""

    __slots__ = ("_admission", "_clock", "_started_s")

    def __init__(self, admission: Admission, clock: StageClock) -> None:
        self._admission = admission
        self._clock = clock

    async def __aenter__(self) -> None:
        with self._clock.stage("queue"):
            await self._admission.acquire()
        self._started_s = self._clock.now_s()

    async def __aexit__(self, *_: object) -> None:
        self._admission.release(self._clock.now_s() - self._started_s)
