"""Ending open requests from outside, when a drain has taken too long."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from chiasm.errors import ShuttingDownError


class Interruptible(Protocol):
    """A request that can be ended from outside; `chiasm.asgi.limits.RequestLimits` is one."""

    def interrupt(self, error: ShuttingDownError) -> None:
        """End it with `error`."""
        ...


class Interruptions:
    """The open requests of one server."""

    def __init__(self) -> None:
        self._open: set[Interruptible] = set()

    @contextmanager
    def reaching(self, request: Interruptible) -> Iterator[None]:
        """Let `abort` reach a request inside the block."""
        self._open.add(request)
        try:
            yield
        finally:
            self._open.discard(request)

    def abort(self) -> None:
        """End all open requests now, each with `ShuttingDownError`."""
        for request in list(self._open):
            request.interrupt(ShuttingDownError("The server stopped before the request was finished"))
