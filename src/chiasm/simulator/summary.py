"""A simulation in numbers: latencies by class, what was bound, and whether it was stable at all."""

from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from chiasm.errors import InvalidSettingError
from chiasm.simulator.record import Column, Record
from chiasm.simulator.run import Outcome

Order = npt.NDArray[np.intp]

_WARM_UP = 0.1
"""Share of the requests, the first to come, that no figure counts: the fleet was empty for them."""
_GROWTH = 1.5
"""Latency of the last quarter over that of the second, from which on a queue is taken to grow without end."""
_KEPT_UP = 0.92
"""Share of the requests that has to have ended when the last one comes."""
_BUSY = 0.9
"""Work of the busiest stage, for the time in which requests came, below which a fleet is stable without looking
further.
"""


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """What a request has to meet. Infinite is no demand."""

    ttft_s: Annotated[float, Meta(gt=0)] = float("inf")
    tpot_s: Annotated[float, Meta(gt=0)] = float("inf")


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Of one latency, in seconds."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


class ClassSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one class, or of all.

    Attributes:
        num_failed: Those that ended with an error, the first to come too; in no latency.
        attained: The share that met both demands of the objective; who failed has not.
    """

    name: str
    num_requests: int
    ttft_s: Percentiles
    e2el_s: Percentiles
    tpot_s: Percentiles | None
    attained: float
    num_failed: int = 0


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What a simulation came to.

    Attributes:
        all: Over all classes; `classes` apart.
        throughput_per_s: Requests that ended, a second.
        tokens_per_s: Output tokens, a second.
        goodput_per_s: Requests that met the objective, a second.
        is_stable: False when a queue was left as the last request came, or latency grew until then: then no figure but
            this one means anything.
        utilisation: By stage, the busiest worker's share of the time; media of its threads'.
        binding: The busiest stage.
        failures: How many ended with which error.
        num_deaths: Workers that died.
        mean_encoders: Encoders apart, averaged over time, and `most_encoders` the most of them.
    """

    cluster: str
    cost: float
    all: ClassSummary
    classes: tuple[ClassSummary, ...]
    throughput_per_s: float
    tokens_per_s: float
    goodput_per_s: float
    mean_open: float
    is_stable: bool
    utilisation: dict[str, float]
    binding: str
    paths: dict[str, int]
    failures: dict[str, int] = {}
    num_deaths: int = 0
    mean_encoders: float = 0.0
    most_encoders: int = 0


def summarise(outcome: Outcome, *, media_threads: int, objective: Objective | None = None) -> Summary:
    """Count everything but the warm-up.

    Args:
        outcome: Of `simulate`.
        media_threads: Of each worker, as calibrated.
        objective: What counts as good; None demands nothing.

    Raises:
        InvalidSettingError: No request ended well, so that there is nothing to count.
    """
    record, objective = outcome.record, objective or Objective()
    if not len(record):
        found = ", ".join(f"{count} {code}" for code, count in _by_code(record).items())
        raise InvalidSettingError(f"No request ended well on '{outcome.cluster.name}': {found or 'none came'}")
    order = np.argsort(record.at_s, kind="stable")[int(_WARM_UP * len(record)) :]
    span_s = max(outcome.elapsed_s - float(record.at_s[order[0]]), 1e-12)
    everyone = _of_class("all", record, order, objective)
    utilisation = _utilisation(outcome, media_threads)
    return Summary(
        cluster=outcome.cluster.name,
        cost=outcome.cluster.cost,
        all=everyone,
        classes=tuple(
            _of_class(name, record, order[record.classes[order] == index], objective)
            for index, name in sorted(enumerate(record.class_names), key=lambda one: one[1])
            if (record.classes[order] == index).any()
        ),
        throughput_per_s=len(order) / span_s,
        tokens_per_s=float(record.num_output_tokens[order].sum()) / span_s,
        goodput_per_s=everyone.attained * (len(order) + everyone.num_failed) / span_s,
        mean_open=outcome.mean_open,
        is_stable=_busy_while_they_came(outcome, utilisation) < _BUSY or _keeps_up(record, order),
        utilisation=utilisation,
        binding=max(utilisation, key=lambda stage: utilisation[stage], default=""),
        paths=dict(sorted(record.paths.items())),
        failures=_by_code(record),
        num_deaths=outcome.num_deaths,
        mean_encoders=outcome.mean_encoders,
        most_encoders=outcome.most_encoders,
    )


def _of_class(name: str, record: Record, chosen: Order, objective: Objective) -> ClassSummary:
    ttft_s, e2el_s, tpot_s = record.ttft_s[chosen], record.e2el_s[chosen], record.tpot_s[chosen]
    several = tpot_s[~np.isnan(tpot_s)]
    num_failed = sum(count for (kind, _), count in record.failures.items() if name in ("all", kind))
    is_good = (ttft_s <= objective.ttft_s) & ~(tpot_s > objective.tpot_s)
    return ClassSummary(
        name=name,
        num_requests=len(chosen),
        ttft_s=_percentiles(ttft_s),
        e2el_s=_percentiles(e2el_s),
        tpot_s=_percentiles(several) if len(several) else None,
        attained=float(is_good.sum()) / (len(chosen) + num_failed),
        num_failed=num_failed,
    )


def _by_code(record: Record) -> dict[str, int]:
    found: dict[str, int] = {}
    for (_, code), count in sorted(record.failures.items()):
        found[code] = found.get(code, 0) + count
    return found


def _percentiles(values: Column) -> Percentiles:
    p50, p90, p95, p99 = (float(one) for one in np.percentile(values, [50, 90, 95, 99]))
    return Percentiles(mean=float(values.mean()), p50=p50, p90=p90, p95=p95, p99=p99)


def _busy_while_they_came(outcome: Outcome, utilisation: Mapping[str, float]) -> float:
    """What the busiest stage worked in all, over the time in which requests came: what it had to do after the last one
    came was a queue, however few the requests were.
    """
    last_s = float(outcome.record.at_s.max())
    return max(utilisation.values(), default=0.0) * outcome.elapsed_s / last_s if last_s > 0 else float("inf")


def _keeps_up(record: Record, order: Order) -> bool:
    """Whether most had ended when the last one came, and the last quarter waited about as long as the second."""
    ended_s = (record.at_s + record.e2el_s)[order]
    if float((ended_s <= float(record.at_s.max())).mean()) < _KEPT_UP:
        return False
    ttft_s, quarter = record.ttft_s[order], max(len(order) // 4, 1)
    return float(ttft_s[-quarter:].mean()) < _GROWTH * float(ttft_s[quarter : 2 * quarter].mean())


def _utilisation(outcome: Outcome, media_threads: int) -> dict[str, float]:
    """By stage: media threads, engines that only encode, and engines that do all their work in turn."""
    found: dict[str, float] = {}
    roles = {one.name: one.roles for one in outcome.cluster.workers}
    for name, shares in outcome.utilisation.items():
        _raise_to(found, "media", shares.get("media", 0.0) / media_threads)
        stage = "encoder" if set(roles[name]) == {"encode"} else _engine_of(roles[name])
        _raise_to(found, stage, sum(share for what, share in shares.items() if what != "media"))
    return {stage: share for stage, share in found.items() if share}


def _engine_of(roles: Iterable[str]) -> str:
    stages = [one for one in ("prefill", "decode") if one in roles]
    return "engine" if len(stages) == 2 else stages[0]


def _raise_to(found: dict[str, float], stage: str, share: float) -> None:
    found[stage] = max(found.get(stage, 0.0), share)
