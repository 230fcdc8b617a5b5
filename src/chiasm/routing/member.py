"""One worker of the fleet, as the router sees it: its state, and what the router has under way there."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from chiasm.protocol.fleet import MemberState
from chiasm.protocol.worker import Worker, WorkerInfo, WorkerStats
from chiasm.routing.clock import Clock
from chiasm.routing.patience import Patience

State = Literal["starting", "ready", "draining", "down"]

_UNEXPLAINED = 0.25
"""Share of open work that is still expected when its predicted time has passed: the prediction was wrong."""


class Backlog:
    """Predicted seconds of work sent to a worker and not answered yet. Melts as time passes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: dict[object, float] = {}
        self._until_s = 0.0

    def __len__(self) -> int:
        return len(self._open)

    def wait_s(self) -> float:
        """Predicted time until the worker is through with what it has."""
        return max(self._until_s - self._clock.now_s(), _UNEXPLAINED * sum(self._open.values()))

    @contextmanager
    def work(self, seconds: float) -> Iterator[None]:
        """Count work as under way inside the block."""
        ticket = object()
        self._until_s = max(self._until_s, self._clock.now_s()) + seconds
        self._open[ticket] = seconds
        try:
            yield
        finally:
            del self._open[ticket]
            self._until_s = min(self._until_s, self._clock.now_s() + sum(self._open.values()))


class Member:
    """A worker with a name, a state and a load. Belongs to one event loop.

    Attributes:
        encoding: Encoder work under way, whether asked for alone or as part of a generation.
        prefilling: Prompts under way, until their first token.
        num_decoding: Generations between their first token and their end.
        used_s: When it last did something for a request.
        waits: What `mark_down` ends.
    """

    def __init__(
        self, name: str, worker: Worker, clock: Clock, on_ready: Callable[[str], None] = lambda _: None
    ) -> None:
        """Take a worker that is not proven yet. `on_ready` is called with the name whenever it becomes ready."""
        self.name = name
        self._on_ready = on_ready
        self.worker = worker
        self.state: State = "starting"
        self.reason = ""
        self.stats: WorkerStats | None = None
        self.used_s = clock.now_s()
        self.encoding = Backlog(clock)
        self.prefilling = Backlog(clock)
        self.num_decoding = 0
        self._clock = clock
        self.waits: set[Patience] = set()

    @property
    def info(self) -> WorkerInfo:
        """The worker's own word; it may change when a worker is restarted behind the same name."""
        return self.worker.info

    @property
    def num_open(self) -> int:
        """Calls under way."""
        return len(self.encoding) + len(self.prefilling) + self.num_decoding

    def snapshot(self) -> MemberState:
        """What is known of it now."""
        return MemberState(
            name=self.name,
            roles=self.info.roles,
            state=self.state,
            reason=self.reason,
            device=self.info.device,
            num_encoding=len(self.encoding),
            num_prefilling=len(self.prefilling),
            num_decoding=self.num_decoding,
            encode_wait_s=self.encoding.wait_s(),
            prefill_wait_s=self.prefilling.wait_s(),
            stats=self.stats,
        )

    def mark_ready(self) -> None:
        """Let it have work, unless it is to be drained."""
        if self.state != "draining":
            self.state, self.reason = "ready", ""
            self._on_ready(self.name)

    def mark_leaving(self) -> None:
        """Give it no more work until a probe succeeds; what it has may finish."""
        if self.state == "ready":
            self.state = "down"

    def mark_down(self, reason: str) -> None:
        """Give it no more work, and end all waits for it now."""
        if self.state != "draining":
            self.state = "down"
        self.reason = reason
        for wait in list(self.waits):
            wait.end()

    def patience(self, limit_s: float) -> Patience:
        """Begin to bound waits for this worker; to be closed."""
        return Patience(self, limit_s)

    def touch(self) -> None:
        """It does something for a request now."""
        self.used_s = self._clock.now_s()

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Count a generation as past its first token inside the block."""
        self.num_decoding += 1
        try:
            yield
        finally:
            self.num_decoding -= 1
