"""Ending open requests from outside, when a drain has taken too long."""

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

    def reaching(self, request: Interruptible) -> "_Reach":
        """Let `abort` reach a request inside the block."""
        return _Reach(self._open, request)

    def abort(self) -> None:
        """End all open requests now, each with `ShuttingDownError`."""
        for request in list(self._open):
            request.interrupt(ShuttingDownError("The server stopped before the request was finished"))


class _Reach:
    """A block in which a request is among the open ones. Not a generator: every request passes through it."""

    __slots__ = ("_open", "_request")

    def __init__(self, open_requests: set[Interruptible], request: Interruptible) -> None:
        self._open = open_requests
        self._request = request

    def __enter__(self) -> None:
        self._open.add(self._request)

    def __exit__(self, *_: object) -> None:
        self._open.discard(self._request)
