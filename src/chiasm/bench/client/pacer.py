"""Waiting for an instant to within some tens of microseconds: event loops' own timers count in milliseconds."""

import asyncio
import ctypes
import os
import time

_TFD_NONBLOCK = os.O_NONBLOCK
_ABSOLUTE = 1
_NS = 1_000_000_000


class _Interval(ctypes.Structure):
    _fields_ = (("period_s", ctypes.c_long), ("period_ns", ctypes.c_long), ("s", ctypes.c_long), ("ns", ctypes.c_long))


class Pacer:
    """A timer of the kernel's on the running event loop. For one waiter at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._timer = self._libc.timerfd_create(time.CLOCK_MONOTONIC, _TFD_NONBLOCK)
        if self._timer < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._waiter: asyncio.Future[None] | None = None
        self._loop.add_reader(self._timer, self._wake)

    async def until(self, at_ns: int) -> None:
        """Return at `at_ns` on the monotonic clock, or at once when that has passed."""
        if at_ns <= time.monotonic_ns():
            return
        self._waiter = self._loop.create_future()
        value = _Interval(0, 0, at_ns // _NS, at_ns % _NS)
        if self._libc.timerfd_settime(self._timer, _ABSOLUTE, ctypes.byref(value), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")
        await self._waiter

    def close(self) -> None:
        """Give the timer back."""
        self._loop.remove_reader(self._timer)
        os.close(self._timer)

    def _wake(self) -> None:
        os.read(self._timer, 8)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
