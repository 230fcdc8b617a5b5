"""Deadlines of many requests by few timers: a timer for each would cost more than all else that limits a request."""

import asyncio
import threading
from typing import Protocol

_GRAIN_S = 0.001
"""Loops count milliseconds: a timer may come so much before its time."""


class Expiring(Protocol):
    """What a deadline ends; `chiasm.asgi.limits.RequestLimits` is one."""

    def expire(self) -> None:
        """Its time is over."""
        ...


class Deadlines:
    """Deadlines that come equally long after their starts, so that the first one in is the first one due.

    Its one timer is set for the first of them, and stays when that is taken out: it looks again when it fires.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._due_s: dict[Expiring, float] = {}
        self._has_timer = False

    def __len__(self) -> int:
        return len(self._due_s)

    def add(self, request: Expiring, due_s: float) -> None:
        """Expire a request at `due_s` of the loop's time, unless it is taken out before."""
        self._due_s[request] = due_s
        if not self._has_timer:
            self._has_timer = True
            self.loop.call_at(due_s, self._look)

    def discard(self, request: Expiring) -> None:
        """It is over, or has another deadline."""
        self._due_s.pop(request, None)

    def _look(self) -> None:
        self._has_timer = False
        now_s = self.loop.time() + _GRAIN_S
        due = []
        for request, due_s in self._due_s.items():
            if due_s > now_s:
                self._has_timer = True
                self.loop.call_at(due_s, self._look)
                break
            due.append(request)
        for request in due:
            if self._due_s.pop(request, None) is not None:  # what another one's end has not taken out
                request.expire()


class _Lines(threading.local):
    """Those of a thread's loop, by time allowed. There are as many as settings that say one."""

    loop: asyncio.AbstractEventLoop | None = None
    by_timeout_s: dict[float, Deadlines] = {}  # noqa: RUF012 - replaced, never changed, before it is used


_LINES = _Lines()


def deadlines_after(timeout_s: float, loop: asyncio.AbstractEventLoop) -> Deadlines:
    """The deadlines of the running loop that are `timeout_s` after their starts."""
    if _LINES.loop is not loop:
        _LINES.loop, _LINES.by_timeout_s = loop, {}
    found = _LINES.by_timeout_s.get(timeout_s)
    if found is None:
        found = _LINES.by_timeout_s[timeout_s] = Deadlines(loop)
    return found
