"""How long a worker is waited for."""

import asyncio
from types import TracebackType
from typing import Protocol

from chiasm.errors import ChiasmError, DeadlineExceededError, EngineDeadError


class Waited(Protocol):
    """Who is waited for. `reason` is why it is down; empty while it is not."""

    name: str
    reason: str
    waits: "set[Patience]"

    def touch(self) -> None:
        """A wait begins or ends."""
        ...


class Patience:
    """Bounds the waits of one call, which are entered one after the other: `with patience: await ...`.

    Does what `asyncio.timeout` does, with one timer for all waits of a call, since one for each token would be dear.
    A wait raises `EngineDeadError` when the worker went down meanwhile, `DeadlineExceededError` when the limit passed.
    """

    def __init__(self, worker: Waited, limit_s: float) -> None:
        self._worker = worker
        self._limit_s = limit_s
        self._task: asyncio.Task[object] | None = None
        self._num_cancels = 0
        self._is_over = False
        self._reason: ChiasmError | None = None
        self._timer = asyncio.get_running_loop().call_later(max(limit_s, 0.0), self.end)
        worker.waits.add(self)
        worker.touch()

    def restart(self, limit_s: float) -> None:
        """Give the waits to come a limit of their own, from now on."""
        self._limit_s = limit_s
        self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(max(limit_s, 0.0), self.end)

    def end(self, reason: ChiasmError | None = None) -> None:
        """Let the present wait, or else the next one, fail now; with `reason`, when there is one."""
        if not self._is_over:
            self._is_over, self._reason = True, reason
            if self._task is not None:
                self._task.cancel()

    def close(self) -> None:
        """There are no more waits."""
        self._timer.cancel()
        self._worker.waits.discard(self)
        self._worker.touch()

    def __enter__(self) -> None:
        if self._is_over:
            raise self._error()
        self._task = asyncio.current_task()
        assert self._task is not None, "only tasks wait"
        self._num_cancels = self._task.cancelling()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        if not self._is_over or task is None:
            return
        is_ours_alone = task.uncancel() <= self._num_cancels
        if is_ours_alone and isinstance(error, asyncio.CancelledError):
            raise self._error() from None

    def _error(self) -> ChiasmError:
        name, reason = self._worker.name, self._worker.reason
        if self._reason is not None:
            return self._reason
        if reason:
            return EngineDeadError(f"Worker '{name}' went down: {reason}")
        return DeadlineExceededError(f"Worker '{name}' did not answer within {self._limit_s:.3g} s")
