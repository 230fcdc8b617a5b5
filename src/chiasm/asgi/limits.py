"""The outer reasons to stop a request: its deadline, a client that has left, a server that goes down."""

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING

from starlette.types import Receive, Scope

from chiasm.asgi.deadlines import deadlines_after
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
        self._is_expired = False
        self._is_over = False
        self._interruption: ChiasmError | None = None
        self._handle: asyncio.Handle | None = None  # of what stops it at another time than its deadline
        self._watcher: asyncio.Task[None] | None = None
        self._on_disconnect: Callable[[Callable[[], None] | None], None] | None = None

    @property
    def remaining_s(self) -> float:
        """Seconds left, at least a millisecond."""
        return max(0.001, self._started_s + self._timeout_s - self._loop.time())

    def shorten(self, timeout_s: float) -> None:
        """Count the deadline from the same start, `timeout_s` after it. One that is interrupted stops all the same."""
        self._timeout_s = timeout_s
        if self._interruption is None:
            self._stop_at(self._started_s + timeout_s)

    def interrupt(self, error: ChiasmError) -> None:
        """Stop the request with `error`, unless something else has stopped it already."""
        if self._interruption is None and not self._is_expired:
            self._interruption = error
            self._stop_at(self._loop.time())

    def expire(self) -> None:
        """Stop it now. Called by the loop, never by the request itself, so that it waits for something meanwhile."""
        if not (self._is_expired or self._is_over):
            self._is_expired = True
            self._task.cancel()

    def watch(self, receive: Receive, scope: Scope) -> None:
        """From now on notice the client's leaving. The body must have been read: nothing else may call `receive`."""
        self._awaits_body = False
        extensions = scope.get("extensions")
        self._on_disconnect = extensions.get(ON_DISCONNECT) if extensions else None
        if self._on_disconnect is not None:
            self._on_disconnect(self._client_left)
        else:
            self._watcher = asyncio.create_task(self._until_disconnect(receive))

    async def __aenter__(self) -> "RequestLimits":
        task = asyncio.current_task()
        assert task is not None, "requests are served by tasks"
        self._task, self._num_cancelled = task, task.cancelling()
        self._loop = asyncio.get_running_loop()
        self._started_s = self._loop.time()
        self._deadlines = deadlines_after(self._timeout_s, self._loop)
        self._deadlines.add(self, self._started_s + self._timeout_s)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        self._deadlines.discard(self)
        if self._handle is not None:
            self._handle.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        elif self._on_disconnect is not None:
            self._on_disconnect(None)
        if self._is_expired and self._task.uncancel() <= self._num_cancelled and kind is asyncio.CancelledError:
            raise self._reason() from None

    def _reason(self) -> ChiasmError:
        if self._interruption is not None:
            return self._interruption
        if self._awaits_body:
            return BodyTimeoutError(
                f"The request's body did not arrive within {self._timeout_s:g} s",
                hint="Send it at once, and smaller pictures on a slow connection",
            )
        return DeadlineExceededError(
            f"The request was not finished within {self._timeout_s:g} s",
            hint="Ask for fewer tokens or pictures, or raise gateway.request_timeout_s",
        )

    async def _until_disconnect(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._client_left()

    def _client_left(self) -> None:
        self.interrupt(_client_left())

    def _stop_at(self, when_s: float) -> None:
        if self._is_expired or self._is_over:
            return
        self._deadlines.discard(self)
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_at(when_s, self.expire)


async def read_body(
    receive: Receive, headers: list[tuple[bytes, bytes]], max_bytes: int, limit: str = "its limit"
) -> bytes:
    """Read the whole body, refusing it as soon as it is known to be too large. `limit` names what could be raised.

    Raises:
        RequestTooLargeError: Announced or received more than `max_bytes`.
        RequestCancelledError: The client left before the end.
    """
    for name, announced in headers:
        if name == b"content-length" and announced.isdigit() and int(announced) > max_bytes:
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
