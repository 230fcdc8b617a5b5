"""What a cell comes to: latencies by class, rates, stages, and whether all of that may be believed."""

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec

from chiasm.bench.client.processes import Measured
from chiasm.bench.metrics.e2el import e2el_s, wire_e2el_s
from chiasm.bench.metrics.goodput import Objectives, attainment
from chiasm.bench.metrics.itl import itl_s
from chiasm.bench.metrics.queue_time import queue_time_s
from chiasm.bench.metrics.stages import StageBreakdown, stage_breakdown
from chiasm.bench.metrics.throughput import Throughput, throughput, window_ns
from chiasm.bench.metrics.tpot import tpot_s
from chiasm.bench.metrics.ttft import ttft_s, wire_ttft_s
from chiasm.bench.record import FINISHED, TIMED_OUT, Record
from chiasm.bench.statistics.distribution import Distribution, distribution
from chiasm.bench.statistics.stability import Stability, stability
from chiasm.bench.validity import ClientHealth, client_health

Verdict = Literal["valid", "unstable", "invalid"]


class Latencies(msgspec.Struct, frozen=True, kw_only=True):
    """Distributions over finished measured requests; None where there is nothing to measure."""

    ttft: Distribution | None
    wire_ttft: Distribution | None
    tpot: Distribution | None
    itl: Distribution | None
    e2el: Distribution | None
    wire_e2el: Distribution | None
    queue_time: Distribution | None
    stages: StageBreakdown | None


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Measured requests of one class, or all. `latencies` is None for an unstable load."""

    num_attempted: int
    outcomes: dict[str, int]
    attainment: float | None
    mean_prompt_tokens: float | None
    mean_output_tokens: float
    num_wrong_length: int
    latencies: Latencies | None

    @property
    def num_finished(self) -> int:
        """Of the attempted requests."""
        return self.outcomes.get(FINISHED, 0)


class CellSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One cell. `rate_per_s` is None for a closed loop."""

    verdict: Verdict
    rate_per_s: float | None
    client: ClientHealth
    stability: Stability | None
    throughput: Throughput
    total: Group
    classes: dict[str, Group]


def summarize(measured: Measured, rate_per_s: float | None, limits: Objectives | None = None) -> CellSummary:
    """Sum a cell up. `limits` adds the share of requests that met them."""
    records = measured.records
    chosen = [record for record in records if record.phase == "measured"]
    health = client_health(measured, is_open_loop=rate_per_s is not None)
    steadiness = None if rate_per_s is None else _stability(chosen)
    is_stable = steadiness is None or steadiness.is_stable
    window = window_ns(records)
    if rate_per_s is None or window[0] == window[1]:  # no schedule, or a single request
        window = min(record.sent_ns for record in records), max(record.end_ns for record in records)
    names = dict.fromkeys(record.request_class for record in chosen)
    return CellSummary(
        verdict="invalid" if health.problems else "valid" if is_stable else "unstable",
        rate_per_s=rate_per_s,
        client=health,
        stability=steadiness,
        throughput=throughput(records, window),
        total=_group(chosen, limits, is_stable=is_stable),
        classes={
            name: _group([one for one in chosen if one.request_class == name], limits, is_stable=is_stable)
            for name in names
        },
    )


def _stability(records: Sequence[Record]) -> Stability:
    """Of TTFT, or of the whole latency where there is none; each as a multiple of its class's median.

    A time-out counts as the time that it took: under an overload, what finishes is what came early.
    """
    rows = [
        (record.scheduled_ns / 1e9, record.request_class, value)
        for record in records
        if (value := _waited_s(record)) is not None
    ]
    by_class: dict[str, list[float]] = {}
    for _, name, value in rows:
        by_class.setdefault(name, []).append(value)
    medians = {name: statistics.median(values) or 1.0 for name, values in by_class.items()}
    return stability([start for start, _, _ in rows], [value / medians[name] for _, name, value in rows])


def _waited_s(record: Record) -> float | None:
    if record.outcome == TIMED_OUT:
        return (record.end_ns - record.scheduled_ns) / 1e9
    return ttft_s(record) if record.streams else e2el_s(record)


def _group(records: Sequence[Record], limits: Objectives | None, *, is_stable: bool) -> Group:
    finished = [record for record in records if record.is_finished]
    prompts = [record.num_prompt_tokens for record in finished if record.num_prompt_tokens is not None]
    return Group(
        num_attempted=len(records),
        outcomes=dict(Counter(record.outcome for record in records).most_common()),
        attainment=attainment(records, limits) if limits is not None else None,
        mean_prompt_tokens=statistics.fmean(prompts) if prompts else None,
        mean_output_tokens=statistics.fmean(record.num_output_tokens for record in finished) if finished else 0.0,
        num_wrong_length=sum(one.streams and one.num_output_tokens != one.num_wanted_tokens for one in finished),
        latencies=_latencies(records) if is_stable else None,
    )


def _latencies(records: Sequence[Record]) -> Latencies:
    return Latencies(
        ttft=distribution(map(ttft_s, records)),
        wire_ttft=distribution(map(wire_ttft_s, records)),
        tpot=distribution(map(tpot_s, records)),
        itl=distribution(itl_s(records)),
        e2el=distribution(map(e2el_s, records)),
        wire_e2el=distribution(map(wire_e2el_s, records)),
        queue_time=distribution(map(queue_time_s, records)),
        stages=stage_breakdown(records),
    )
