"""One measurement: what a server can do with a kind of requests, and a cell on all servers with one seed."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from chiasm.bench.client.processes import Measured, run_clients
from chiasm.bench.grid.cells import Cell, Kind, request_class
from chiasm.bench.grid.journal import Answer, Run
from chiasm.bench.grid.servers import Server
from chiasm.bench.grid.spec import GridSpec
from chiasm.bench.grid.usage import shares
from chiasm.bench.metrics.e2el import e2el_s
from chiasm.bench.metrics.tpot import tpot_s
from chiasm.bench.metrics.ttft import ttft_s
from chiasm.bench.record import Record
from chiasm.bench.summary import summarize
from chiasm.bench.workload.classes import RequestClass
from chiasm.bench.workload.planning import Shape, Timetable, phases, timetable, write_plan
from chiasm.errors import EngineError

_MEETING_REQUESTS = 6
"""So many requests of a kind a server gets before anything of it is measured: `auto` learns from them."""


@dataclass(frozen=True)
class _Plan:
    """Requests with their times, as a cell's seed has them."""

    table: Timetable
    num_warmup: int
    seed: str

    async def send(
        self, server: Server, timeout_s: float, concurrency: int = 0, text_seed: str | None = None
    ) -> Measured:
        with TemporaryDirectory(prefix="chiasm-grid-") as name:
            folder, count = Path(name), len(self.table)
            phase_of = phases(self.num_warmup, count - self.num_warmup, count)
            write_plan(folder, self.table, phase_of, server.dialect, self.seed, text_seed=text_seed)
            return await run_clients(
                folder,
                server.target,
                num_processes=1,
                timeout_s=timeout_s,
                last_s=self.table[-1][0] + (timeout_s * count / concurrency if concurrency else 0.0),
                concurrency=concurrency,
            )


async def capacity_per_s(kind: Kind, servers: Sequence[Server], spec: GridSpec) -> float:
    """Requests per second of the baseline with a few requests open. Every server meets the kind on this occasion.

    Raises:
        EngineError: A request failed; a load cannot be told from that.
    """
    one = request_class(kind, spec)
    for server in servers:
        await _closed(server, one, f"meeting {kind}", _MEETING_REQUESTS, spec)
    baseline = next(server for server in servers if server.name == spec.baseline)
    measured = await _closed(baseline, one, f"capacity {kind}", spec.capacity_requests, spec)
    return _steady_per_s([record.end_ns for record in measured.records], spec.capacity_open)


async def _closed(server: Server, one: RequestClass, seed: str, count: int, spec: GridSpec) -> Measured:
    plan = _Plan([(0.0, one)] * count, 0, seed)
    measured = await plan.send(server, spec.timeout_s, concurrency=min(spec.capacity_open, count))
    failed = [record.outcome for record in measured.records if not record.is_finished]
    if failed:
        raise EngineError(
            f"{len(failed)} of {count} requests to '{server.name}' failed while its capacity was measured: {failed[0]}",
            hint="Ask the server one such request by hand; smaller pictures or shorter answers may fit its model",
        )
    return measured


def _steady_per_s(ends_ns: Sequence[int], num_open: int) -> float:
    """Ends per second between the first answers and the time from which fewer requests are open."""
    ends = sorted(ends_ns)
    first, last = num_open - 1, len(ends) - num_open
    if last - first < num_open:  # too few for that
        first, last = 0, len(ends) - 1
    return (last - first) / max((ends[last] - ends[first]) / 1e9, 1e-9)


async def measure_seed(
    cell: Cell, seed: int, rate_per_s: float, servers: Sequence[Server], spec: GridSpec
) -> list[Run]:
    """The same requests at the same times to every server, in an order at random."""
    plan = _planned(cell, seed, rate_per_s, spec)
    order = random.Random(f"{spec.order_seed} {plan.seed}").sample(list(servers), len(servers))  # noqa: S311
    runs = []
    for server in order:
        if cell.kind.cache == "warm":
            one = plan.table[0][1]
            warm = _Plan([(0.0, one)] * len(plan.table), 0, plan.seed)
            await warm.send(server, spec.timeout_s, spec.capacity_open, text_seed=f"{plan.seed} before")
        before = server.cpu_s()
        measured = await plan.send(server, spec.timeout_s)
        used = shares(before, server.cpu_s(), max(record.end_ns for record in measured.records) / 1e9)
        runs.append(_run(cell, seed, server.name, rate_per_s, measured, used))
    return runs


def _planned(cell: Cell, seed: int, rate_per_s: float, spec: GridSpec) -> _Plan:
    num_measured = max(spec.min_requests, min(spec.max_requests, round(spec.seconds * rate_per_s)))
    shape = Shape(
        pattern=spec.arrivals,
        rate_per_s=rate_per_s,
        num_warmup=min(spec.max_requests, round(spec.warmup_seconds * rate_per_s)),
        num_measured=num_measured,
    )
    name = f"{cell} {seed}"
    return _Plan(timetable(shape, (request_class(cell.kind, spec),), name), shape.num_warmup, name)


def _run(cell: Cell, seed: int, topology: str, rate_per_s: float, measured: Measured, used: dict[str, float]) -> Run:
    summary = summarize(measured, rate_per_s)
    return Run(
        cell=cell,
        seed=seed,
        topology=topology,
        rate_per_s=rate_per_s,
        verdict=summary.verdict,
        problems=summary.client.problems,
        lag_p99_ms=round(summary.client.send_lag_p99_ms, 3),
        used=used,
        answers=tuple(_answer(record) for record in measured.records if record.phase == "measured"),
    )


def _answer(record: Record) -> Answer:
    return Answer(
        record.scheduled_ns / 1e9,
        _rounded(ttft_s(record)),
        _rounded(e2el_s(record)),
        _rounded(tpot_s(record)),
        record.outcome,
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
