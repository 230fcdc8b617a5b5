"""What a serving report consists of; as JSON it is also what a later report is compared with."""

import msgspec

from chiasm.bench.metrics.stages import StageBreakdown
from chiasm.bench.metrics.throughput import Throughput
from chiasm.bench.statistics.distribution import Distribution
from chiasm.gateway.policy import ServerPolicy
from chiasm.observability.memory import WorkerMemory
from chiasm.observability.receipt import Receipt
from chiasm.protocol.fleet import FleetState
from chiasm.protocol.openai.models import ModelCard
from chiasm.reporting.growth import Growth

FORMAT = 1


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """Values of single requests in milliseconds, which two reports are compared by."""

    ttft_ms: tuple[float, ...] = ()
    tpot_ms: tuple[float, ...] = ()
    e2el_ms: tuple[float, ...] = ()


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one kind with so many of them open at once.

    Attributes:
        key: The same in every report that measures the same.
        image_size: Width and height; None without pictures.
        prompt_tokens: Mean; None where the server does not count.
        share_cached_tokens: Of the prompt tokens of the cell, those found in the prefix cache.
        share_avoided_pictures: Of its pictures, those that needed no encoding, for whatever reason.
    """

    key: str
    concurrency: int
    num_images: int
    image_size: tuple[int, int] | None
    output_tokens: int
    num_requests: int
    outcomes: dict[str, int]
    throughput: Throughput
    ttft: Distribution | None
    tpot: Distribution | None
    e2el: Distribution | None
    prompt_tokens: float | None
    stages: StageBreakdown | None
    share_cached_tokens: float
    share_avoided_pictures: float
    samples: Samples

    @property
    def num_finished(self) -> int:
        """Of the requests."""
        return self.outcomes.get("finished", 0)


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a server should not take, and what it said.

    `code` is None where it was taken, or failed for another reason: then nothing says that it would be refused.
    """

    sent: str
    status: int
    code: str | None
    message: str


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """One request that was served: what it was like, and its receipt. Its content is in neither."""

    what: str
    receipt: Receipt


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All of it.

    Attributes:
        load: The options that decide what was sent; reports with others are not compared.
        stages: One request at a time, by pictures and their size.
        concurrency: The same requests, more and more at once.
        caches: The same pictures asked about again, beside pictures never seen.
        totals: Counters of the server from its start to the end of the report.
        memory: At the end.
    """

    format: int = FORMAT
    made_at_unix_s: float
    took_s: float
    version: str
    uptime_s: float
    load: dict[str, str]
    model: ModelCard
    fleet: FleetState
    policy: ServerPolicy
    stages: tuple[Cell, ...]
    concurrency: tuple[Cell, ...]
    caches: tuple[Cell, ...]
    totals: dict[str, float]
    worker_totals: dict[str, float]
    memory: tuple[WorkerMemory, ...]
    growth: Growth | None
    examples: tuple[Example, ...]
    refusals: tuple[Refusal, ...]
