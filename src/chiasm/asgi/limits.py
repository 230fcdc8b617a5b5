"""The outer reasons to stop a request: its deadline, a client that has left, a server that goes down."""

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING

from starlette.types import Receive, Scope

from chiasm.errors import (
    BodyTimeoutError,
    ChiasmError,
    DeadlineExceededError,
    RequestCancelledError,
    RequestTooLargeError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

ON_DISCONNECT = "chiasm.disconnect"
"""ASGI extension: call it with what to call when the client leaves, or with None; cheaper than a task that waits."""


class RequestLimits:
    """Context around all that is done for one request.

    Each reason interrupts whatever is awaited inside: the deadline raises `DeadlineExceededError`, a client that closes
    its connection raises `RequestCancelledError`, `interrupt` raises what it is given.
    """

    def __init__(self, timeout_s: float, *, awaits_body: bool = False) -> None:
        """With `awaits_body`, a deadline that passes before `watch` raises `BodyTimeoutError`: the client was late."""
        self._timeout_s = timeout_s
        self._awaits_body = awaits_body
        self._started_s = 0.0
        self._interruption: ChiasmError | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._on_disconnect: Callable[[Callable[[], None] | None], None] | None = None

    @property
    def remaining_s(self) -> float:
        """Seconds left, at least a millisecond."""
        return max(0.001, self._started_s + self._timeout_s - asyncio.get_running_loop().time())

    def shorten(self, timeout_s: float) -> None:
        """Count the deadline from the same start, `timeout_s` after it."""
        self._timeout_s = timeout_s
        self._stop_at(self._started_s + timeout_s)

    def interrupt(self, error: ChiasmError) -> None:
        """Stop the request with `error`, unless something else has stopped it already."""
        if self._interruption is None and not self._scope.expired():
            self._interruption = error
            self._stop_at(asyncio.get_running_loop().time())

    def watch(self, receive: Receive, scope: Scope) -> None:
        """From now on notice the client's leaving. The body must have been read: nothing else may call `receive`."""
        self._awaits_body = False
        self._on_disconnect = scope.get("extensions", {}).get(ON_DISCONNECT)
        if self._on_disconnect is not None:
            self._on_disconnect(lambda: self.interrupt(_client_left()))
        else:
            self._watcher = asyncio.create_task(self._until_disconnect(receive))

    async def __aenter__(self) -> "RequestLimits":
        self._started_s = asyncio.get_running_loop().time()
        self._scope = asyncio.timeout_at(self._started_s + self._timeout_s)
        await self._scope.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        elif self._on_disconnect is not None:
            self._on_disconnect(None)
        try:
            await self._scope.__aexit__(kind, error, trace)
        except TimeoutError as expired:
            if self._interruption is not None:
                raise self._interruption from None
            if self._awaits_body:
                raise BodyTimeoutError(
                    f"The request's body did not arrive within {self._timeout_s:g} s",
                    hint="Send it at once, and smaller pictures on a slow connection",
                ) from expired
            raise DeadlineExceededError(
                f"The request was not finished within {self._timeout_s:g} s",
                hint="Ask for fewer tokens or pictures, or raise gateway.request_timeout_s",
            ) from expired

    async def _until_disconnect(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.interrupt(_client_left())

    def _stop_at(self, when_s: float) -> None:
        if not self._scope.expired():
            self._scope.reschedule(when_s)


async def read_body(
    receive: Receive, headers: list[tuple[bytes, bytes]], max_bytes: int, limit: str = "its limit"
) -> bytes:
    """Read the whole body, refusing it as soon as it is known to be too large. `limit` names what could be raised.

    Raises:
        RequestTooLargeError: Announced or received more than `max_bytes`.
        RequestCancelledError: The client left before the end.
    """
    announced = next((value for name, value in headers if name == b"content-length"), b"0")
    if announced.isdigit() and int(announced) > max_bytes:
        raise _too_large(max_bytes, limit)
    pieces: list[bytes] = []
    num_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _client_left()
        piece = message.get("body", b"")
        num_bytes += len(piece)
        if num_bytes > max_bytes:
            raise _too_large(max_bytes, limit)
        pieces.append(piece)
        if not message.get("more_body", False):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _client_left() -> RequestCancelledError:
    return RequestCancelledError("The client closed the connection")


def _too_large(max_bytes: int, limit: str) -> RequestTooLargeError:
    return RequestTooLargeError(
        f"The body has more than {max_bytes} bytes",
        hint=f"Send fewer or smaller pictures, or raise {limit}",
    )
