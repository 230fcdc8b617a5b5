"""Who may come in, who waits, who runs. Bounded; fair between tenants, first come first served within each."""

import asyncio
import math
from typing import Protocol

from chiasm.errors import OverloadedError, ShuttingDownError
from chiasm.observability.receipt import StageClock
from chiasm.tenancy.fair_queue import FairQueue, Share

_MAX_RETRY_AFTER_S = 60
_SMOOTHING = 0.1
_FIRST_ESTIMATE_S = 1.0


class Interruptible(Protocol):
    """A request that can be ended from outside; `chiasm.asgi.limits.RequestLimits` is one."""

    def interrupt(self, error: OverloadedError) -> None:
        """End it with `error`."""
        ...


class Admission:
    """Counts open requests and hands out running slots.

    A request is open from its first byte to its end; at most `max_running` + `max_queued` are. Of those, `max_running`
    hold a slot, in the order in which they asked; where several tenants wait, that of `FairQueue`. Fetching media
    happens before a slot is asked for, so that a slow download never keeps a text request from running.

    Where all places are taken, a tenant that has fewer of them for its weight than another gets the newest one of the
    other that has no slot yet: no tenant can fill the queue for all.

    Attributes:
        mean_run_s: For which requests held a slot, of late.
    """

    def __init__(self, max_running: int, max_queued: int) -> None:
        self.max_running = max_running
        self._max_open = max_running + max_queued
        self._queue: FairQueue[asyncio.Future[float]] = FairQueue()
        self._idle = asyncio.Event()
        self._idle.set()
        self.mean_run_s = 0.0
        self._everybody = Share("")
        self._sharing: dict[Share, None] = {}  # those with open requests
        self._num_leaving = 0
        self.num_open = 0
        self.num_running = 0
        self.is_closed = False

    @property
    def num_queued(self) -> int:
        """Open requests without a slot: arriving, fetching media, or waiting."""
        return self.num_open - self.num_running

    def open(self, share: Share | None = None) -> "Seat":
        """Count a request of a tenant as open inside a block.

        Entering it raises:
            ShuttingDownError: `close` was called.
            OverloadedError: As many requests are open as may be.
        """
        return Seat(self, share or self._everybody)

    def slot(self, clock: StageClock, seat: "Seat | None" = None) -> "_Slot":
        """Wait for a running slot and hold it inside the block; cancelling the wait gives up the place.

        `clock` gets the wait as its 'queue' stage.
        """
        return _Slot(self, clock, seat, self._everybody if seat is None else seat.share)

    def acquire_nowait(self, share: Share) -> float | None:
        """Take a slot that is free, as `acquire` does; None where one has to wait."""
        if self.num_running < self.max_running and not self._queue:
            return self._start(share)
        return None

    async def acquire(self, share: Share) -> float:
        """Wait for a slot; the block of `slot` does. Returns what `release` has to be told."""
        estimated_s = self.acquire_nowait(share)
        if estimated_s is not None:
            return estimated_s
        waiter: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._queue.push(share, waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():  # granted at this very moment
                self.release(share, 0.0, waiter.result())
            else:
                self._queue.remove(share, waiter)
            raise

    def release(self, share: Share, run_s: float, estimated_s: float) -> None:
        """Give a slot back after `run_s` seconds."""
        self.num_running -= 1
        self._queue.end(share, run_s, estimated_s)
        while self._queue:
            share, waiter = self._queue.pop()
            if not waiter.done():  # else it was cancelled at this very moment, and does not know yet
                waiter.set_result(self._start(share))
                return

    def enter(self, seat: "Seat") -> None:
        """Count a request as open; the block of `open` does."""
        if self.is_closed:
            raise ShuttingDownError("The server is shutting down", hint="Send the request to another instance")
        if self.num_open - self._num_leaving >= self._max_open and not self._displace(seat.share):
            raise self._full()
        self.num_open += 1
        share = seat.share
        share.num_open += 1
        share.pending[seat] = None
        self._sharing[share] = None
        self._idle.clear()

    def leave(self, seat: "Seat") -> None:
        """Count it as open no more."""
        share = seat.share
        share.pending.pop(seat, None)
        share.num_open -= 1
        if share.num_open == 0:
            self._sharing.pop(share, None)
        self._num_leaving -= seat.is_leaving
        self.num_open -= 1
        if self.num_open == 0:
            self._idle.set()

    def learn(self, run_s: float) -> None:
        """Take the time that a request has run into the mean."""
        self.mean_run_s += _SMOOTHING * (run_s - self.mean_run_s)

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

    def _start(self, share: Share) -> float:
        self.num_running += 1
        estimate_s = self.mean_run_s or _FIRST_ESTIMATE_S
        self._queue.start(share, estimate_s)
        return estimate_s

    def _displace(self, share: Share) -> bool:
        """End the newest waiting request of who has most for its weight, if that is more than `share` would have."""
        others = [one for one in self._sharing if one is not share and one.pending]
        most = max(others, key=lambda one: len(one.pending) / one.weight, default=None)
        if most is None or most.num_open / most.weight <= (share.num_open + 1) / share.weight:
            return False
        newest: Seat = next(reversed(most.pending))
        if newest.request is None:
            return False
        del most.pending[newest]
        newest.is_leaving = True
        self._num_leaving += 1
        newest.request.interrupt(self._full())
        return True

    def _full(self) -> OverloadedError:
        return OverloadedError(
            f"{self.num_running} requests run and {self.num_queued} wait",
            retry_after_s=self._retry_after_s(),
            hint="Retry after the time in Retry-After",
        )

    def _retry_after_s(self) -> int:
        """When the queue should have moved through, from the mean time that requests have run."""
        waves = math.ceil((self.num_queued + 1) / self.max_running)
        return min(_MAX_RETRY_AFTER_S, max(1, math.ceil(waves * self.mean_run_s)))


class Seat:
    """An open request's place, inside a block. Not a generator: every request passes through it.

    Attributes:
        request: Set it to let the request be displaced while it has no slot.
    """

    __slots__ = ("_admission", "is_leaving", "request", "share")

    def __init__(self, admission: Admission, share: Share) -> None:
        self._admission = admission
        self.share = share
        self.request: Interruptible | None = None
        self.is_leaving = False

    def __enter__(self) -> "Seat":
        self._admission.enter(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._admission.leave(self)


class _Slot:
    """Holds a slot inside a block. Not a generator: every request passes through it."""

    __slots__ = ("_admission", "_clock", "_estimate_s", "_seat", "_share", "_started_s")

    def __init__(self, admission: Admission, clock: StageClock, seat: Seat | None, share: Share) -> None:
        self._admission = admission
        self._clock = clock
        self._seat = seat
        self._share = share

    async def __aenter__(self) -> None:
        clock = self._clock
        asked_s = clock.now_s()
        estimate_s = self._admission.acquire_nowait(self._share)
        try:
            self._estimate_s = await self._admission.acquire(self._share) if estimate_s is None else estimate_s
        finally:
            self._started_s = clock.now_s()
            clock.add("queue", asked_s, self._started_s)
        if self._seat is not None:
            self._share.pending.pop(self._seat, None)

    async def __aexit__(self, *_: object) -> None:
        run_s = self._clock.now_s() - self._started_s
        self._admission.learn(run_s)
        self._admission.release(self._share, run_s, self._estimate_s)
