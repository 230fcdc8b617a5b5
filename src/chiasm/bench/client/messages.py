"""What a client process is told on standard input, and says on standard output: one line of JSON each."""

import msgspec

from chiasm.bench.target import Target


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """The first line in: which part of which plan to send where. `concurrency` 0 is an open loop."""

    plan: str
    part: int
    num_parts: int
    target: Target
    timeout_s: float
    concurrency: int = 0


class Go(msgspec.Struct, frozen=True, tag="go"):
    """The second line in: the zero of all instants, on the monotonic clock."""

    zero_ns: int


class Prepared(msgspec.Struct, frozen=True, tag="prepared"):
    """Everything is in memory."""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """So many requests were attempted, have ended, and have ended without an answer."""

    num_sent: int
    num_ended: int
    num_failed: int


class Done(msgspec.Struct, frozen=True, tag="done"):
    """All ended; the records lie in the plan's folder. `cpu_share` is that of one core."""

    cpu_s: float
    cpu_share: float


Report = Prepared | Progress | Done
