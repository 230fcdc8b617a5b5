"""One worker of the fleet, as the router sees it: its state, and what the router has under way there."""

from collections.abc import Callable
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

    __slots__ = ("_clock", "_num_open", "_open_s", "_until_s")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._num_open = 0
        self._open_s = 0.0
        self._until_s = 0.0

    def __len__(self) -> int:
        return self._num_open

    def wait_s(self) -> float:
        """Predicted time until the worker is through with what it has."""
        return self.wait_at_s(self._clock.now_s())

    def wait_at_s(self, now_s: float) -> float:
        """`wait_s`, for who looks at many at once and has read the clock."""
        left_s, least_s = self._until_s - now_s, _UNEXPLAINED * self._open_s
        return left_s if left_s > least_s else least_s  # not `max`: each request looks at many workers

    def work(self, seconds: float) -> "_Work":
        """Count work as under way inside the block."""
        return _Work(self, seconds)

    def begin(self, seconds: float) -> None:
        """Count work as under way from now on, until `end`."""
        self._until_s = max(self._until_s, self._clock.now_s()) + seconds
        self._num_open += 1
        self._open_s += seconds

    def end(self, seconds: float) -> None:
        """Work that was begun with the same number is over."""
        self._num_open -= 1
        self._open_s = max(self._open_s - seconds, 0.0) if self._num_open else 0.0  # sums of floats drift
        self._until_s = min(self._until_s, self._clock.now_s() + self._open_s)


class _Work:
    """A block of work. Not a generator: it stands around every call to a worker."""

    __slots__ = ("_backlog", "_seconds")

    def __init__(self, backlog: Backlog, seconds: float) -> None:
        self._backlog = backlog
        self._seconds = seconds

    def __enter__(self) -> None:
        self._backlog.begin(self._seconds)

    def __exit__(self, *_: object) -> None:
        self._backlog.end(self._seconds)


class Member:
    """A worker with a name, a state and a load. Belongs to one event loop.

    Attributes:
        encoding: Encoder work under way, whether asked for alone or as part of a generation.
        prefilling: Prompts under way, until their first token.
        num_decoding: Generations between their first token and their end.
        num_rests: Deletions for which it is at rest: others are given work meanwhile, where there are any.
        used_s: When it last did something for a request.
        waits: What `mark_down` ends.
        is_shared: Whether other gateways may know it by the same name.
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
        self.num_rests = 0
        self._clock = clock
        self.waits: set[Patience] = set()
        self.is_shared = False

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

    def resume(self) -> None:
        """Let it have work again, after a probe has succeeded, if it was to be drained."""
        if self.state == "draining":
            self.state = "starting"

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

    def decoding(self) -> "_Decoding":
        """Count a generation as past its first token inside the block."""
        return _Decoding(self)


class _Decoding:
    """A block of decoding. Not a generator: it stands around every answer of a worker."""

    __slots__ = ("_member",)

    def __init__(self, member: Member) -> None:
        self._member = member

    def __enter__(self) -> None:
        self._member.num_decoding += 1

    def __exit__(self, *_: object) -> None:
        self._member.num_decoding -= 1
