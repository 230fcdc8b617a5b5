"""One cell: write the plan, send it, sum it up. And what is made of cells: repeats, peak throughput, goodput."""

import asyncio
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from chiasm.bench.aiperf import write_aiperf
from chiasm.bench.client.messages import Progress
from chiasm.bench.client.processes import Measured, run_clients
from chiasm.bench.metrics.goodput import Objectives
from chiasm.bench.search import Goodput, Trial, find_goodput
from chiasm.bench.summary import CellSummary, summarize
from chiasm.bench.target import Target
from chiasm.bench.workload.arrivals import Pattern
from chiasm.bench.workload.bodies import Dialect
from chiasm.bench.workload.classes import RequestClass
from chiasm.bench.workload.plan import BODIES, Phase
from chiasm.bench.workload.planning import Shape, Timetable, phases, timetable, write_plan
from chiasm.errors import EngineError, InvalidSettingError

SPEC = "spec.json"
SUMMARY = "summary.json"

_MAX_PROCESSES = 8


class LoadSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent, apart from the rate. `num_warmup` and `num_cooldown` None: a tenth of `num_requests` each, at least
    5.

    With `trace`, times and classes come from it instead of `pattern`. `num_processes` 0 takes half of the cores, at
    most 8.
    """

    classes: tuple[RequestClass, ...]
    pattern: Pattern = "poisson"
    gamma_shape: Annotated[float, Meta(gt=0)] = 1.0
    num_requests: Annotated[int, Meta(ge=1, le=10_000_000)] = 100
    num_warmup: Annotated[int, Meta(ge=0)] | None = None
    num_cooldown: Annotated[int, Meta(ge=0)] | None = None
    seed: str = "0"
    timeout_s: Annotated[float, Meta(gt=0)] = 120.0
    num_processes: Annotated[int, Meta(ge=0, le=64)] = 0
    limits: Objectives | None = None

    @property
    def warmup(self) -> int:
        """Requests before those that are measured."""
        return self._edge if self.num_warmup is None else self.num_warmup

    @property
    def cooldown(self) -> int:
        """Requests after them, which keep the load up."""
        return self._edge if self.num_cooldown is None else self.num_cooldown

    @property
    def processes(self) -> int:
        """Client processes."""
        return self.num_processes or max(1, min(_MAX_PROCESSES, (os.cpu_count() or 2) // 2))

    @property
    def _edge(self) -> int:
        return max(5, math.ceil(self.num_requests / 10))

    def shape(self, rate_per_s: float) -> Shape:
        """The load at a rate."""
        return Shape(
            pattern=self.pattern,
            rate_per_s=rate_per_s,
            gamma_shape=self.gamma_shape,
            num_warmup=self.warmup,
            num_measured=self.num_requests,
            num_cooldown=self.cooldown,
        )


class Watcher:
    """Is told how a cell goes. Does nothing; a command shows it."""

    def cell(self, name: str, num_requests: int) -> None:
        """A cell of so many requests begins."""

    def planned(self, count: int) -> None:
        """So many bodies have been made."""

    def sent(self, progress: Progress) -> None:
        """So far the sending has come."""

    def ended(self, name: str, summary: CellSummary) -> None:
        """The cell has ended."""


class Bench:
    """Cells on one server. Each has a folder of its own below `folder`, whose files say what was sent and what came
    back.

    Raises `EngineError` from all methods when a client process fails.
    """

    def __init__(self, folder: Path, target: Target, dialect: Dialect, spec: LoadSpec, watcher: Watcher) -> None:
        self._folder = folder
        self._target = target
        self._dialect = dialect
        self._spec = spec
        self._watcher = watcher

    async def repeats(self, rate_per_s: float, count: int) -> list[CellSummary]:
        """The same load with other seeds: other arrivals and other payloads."""
        return [
            await self.open_loop(f"run-{number}", rate_per_s, f"{self._spec.seed}-{number}") for number in range(count)
        ]

    async def open_loop(self, name: str, rate_per_s: float, seed: str) -> CellSummary:
        """A cell at a mean rate."""
        spec = self._spec
        table = timetable(spec.shape(rate_per_s), spec.classes, seed)
        return await self._cell(
            name, table, phases(spec.warmup, spec.num_requests, len(table)), seed, rate_per_s=rate_per_s
        )

    async def replay(self, name: str, table: Timetable, speed: float) -> CellSummary:
        """A trace, `speed` times as fast. Warm-up and cool-down are its first and last requests, as many as were asked
        for.
        """
        spec = self._spec
        num_warmup, num_cooldown = spec.num_warmup or 0, spec.num_cooldown or 0
        num_measured = len(table) - num_warmup - num_cooldown
        if num_measured < 1:
            raise InvalidSettingError(f"The trace has {len(table)} requests, so none is left to be measured")
        faster = [(at_s / speed, kind) for at_s, kind in table]
        rate_per_s = len(table) / max(faster[-1][0], 1e-9)
        return await self._cell(
            name, faster, phases(num_warmup, num_measured, len(table)), spec.seed, rate_per_s=rate_per_s
        )

    async def peak(self, name: str, concurrency: int) -> CellSummary:
        """A closed loop: the next request leaves when one has ended. Tells throughput; its latencies are the load's
        own.
        """
        spec = self._spec
        table = [(0.0, kind) for _, kind in timetable(spec.shape(1.0), spec.classes, spec.seed)]
        phase_of: list[Phase] = ["measured"] * len(table)
        return await self._cell(name, table, phase_of, spec.seed, concurrency=concurrency)

    async def goodput(self, start_per_s: float) -> Goodput:
        """Search the highest rate within the objectives.

        Raises:
            EngineError: The client was the limit, at a rate that the message names.
        """
        count = 0

        async def evaluate(rate_per_s: float) -> Trial:
            nonlocal count
            count += 1
            summary = await self.open_loop(f"rate-{count}-{rate_per_s:.3g}", rate_per_s, f"{self._spec.seed}-{count}")
            if summary.client.problems:
                raise EngineError(
                    f"At {rate_per_s:.3g} requests per second this client was the limit: {summary.client.problems[0]}",
                    hint="More --processes, or a machine of its own for the client",
                )
            return Trial(
                rate_per_s=rate_per_s,
                attainment=summary.total.attainment or 0.0,
                is_stable=summary.verdict == "valid",
                by_class={name: group.attainment or 0.0 for name, group in summary.classes.items()},
            )

        return await find_goodput(evaluate, start_per_s)

    async def _cell(
        self,
        name: str,
        table: Timetable,
        phase_of: Sequence[Phase],
        seed: str,
        *,
        rate_per_s: float | None = None,
        concurrency: int = 0,
    ) -> CellSummary:
        folder = self._folder / name
        folder.mkdir(parents=True)
        (folder / SPEC).write_bytes(msgspec.json.format(msgspec.json.encode(self._spec)))
        self._watcher.cell(name, len(table))
        await asyncio.to_thread(write_plan, folder, table, phase_of, self._dialect, seed, self._watcher.planned)
        measured = await run_clients(
            folder,
            self._target,
            num_processes=min(self._spec.processes, concurrency or len(table)),
            timeout_s=self._spec.timeout_s,
            last_s=table[-1][0]
            if rate_per_s is not None
            else self._spec.timeout_s * math.ceil(len(table) / concurrency),
            concurrency=concurrency,
            on_progress=self._watcher.sent,
        )
        summary = summarize(measured, rate_per_s, self._spec.limits)
        (folder / BODIES).unlink()  # made from the seed, and made again by the same command
        _write_results(folder, measured, summary)
        self._watcher.ended(name, summary)
        return summary


def _write_results(folder: Path, measured: Measured, summary: CellSummary) -> None:
    (folder / SUMMARY).write_bytes(msgspec.json.format(msgspec.json.encode(summary)))
    write_aiperf(folder, measured, summary)
