"""Measuring the cells of a report with the load generator of `chiasm bench`."""

import asyncio
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from chiasm.bench.aiperf import RECORDS
from chiasm.bench.cell import Bench, LoadSpec, Watcher
from chiasm.bench.server import ServerView
from chiasm.bench.summary import CellSummary
from chiasm.bench.target import Target
from chiasm.bench.workload.bodies import Dialect
from chiasm.bench.workload.classes import Kind, RequestClass
from chiasm.protocol.fleet import FleetState
from chiasm.protocol.worker import WorkerInfo
from chiasm.reporting.content import Cell, Samples

AVOIDED = "encodes_avoided_"
"""How counters of pictures that needed no encoding begin; the rest says why."""
_MIN_REQUESTS = 8
_MAX_REQUESTS = 200
_PER_OPEN = 8
"""Requests for each that is open: a comparison averages those that ran side by side, and needs some groups of them."""
_PILOT_REQUESTS = 3


class StateAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Of `GET /debug/state`, what a report reads."""

    version: str
    uptime_s: float
    model: WorkerInfo
    totals: dict[str, float]
    worker_totals: dict[str, float]
    fleet: FleetState


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured. Pictures are square, and unique where a cell does not say otherwise."""

    kind: Kind = "chat"
    seconds_per_cell: float = 8.0
    concurrency: tuple[int, ...] = (1, 2, 4, 8)
    images: tuple[int, ...] = (0, 1, 2, 4)
    sizes: tuple[int, ...] = (224, 448, 896)
    text_tokens: int = 64
    output_tokens: int = 32
    timeout_s: float = 60.0
    seed: str = "report"

    @property
    def load(self) -> dict[str, str]:
        """The part that decides whether two reports measure the same."""
        told = {name: getattr(self, name) for name in ("kind", "text_tokens", "output_tokens", "seed")}
        return {name: str(value) for name, value in told.items()}

    def stage_classes(self, *, takes_images: bool) -> list[RequestClass]:
        """Requests that are sent one at a time."""
        counts = [count for count in self.images if count == 0 or takes_images]
        return [self.request(count, size) for count in counts for size in (self.sizes if count else self.sizes[:1])]

    def main_class(self, *, takes_images: bool) -> RequestClass:
        """Requests that are sent side by side."""
        return self.request(int(takes_images), self.sizes[len(self.sizes) // 2])

    def request(self, num_images: int, size: int, reuse: float = 0.0) -> RequestClass:
        """Requests with so many pictures of a size."""
        return RequestClass(
            kind=self.kind,
            images=num_images,
            image_width=size,
            image_height=size,
            image_reuse=reuse,
            text_tokens=self.text_tokens,
            output_tokens=self.output_tokens,
        )


class Cells:
    """Measures cells of one server, one after the other, in folders below `folder`. Raises `ChiasmError`."""

    def __init__(
        self, folder: Path, server: ServerView, target: Target, dialect: Dialect, plan: Plan, watcher: Watcher
    ) -> None:
        self._folder = folder
        self._server = server
        self._target = target
        self._dialect = dialect
        self._plan = plan
        self._watcher = watcher
        self._alone_s: dict[tuple[int, int], float] = {}

    async def measure(self, key: str, kind: RequestClass, concurrency: int = 1, seed: str = "") -> Cell:
        """One cell, for about the time that the plan allows."""
        if (kind.images, kind.image_width) not in self._alone_s:
            self._alone_s[kind.images, kind.image_width] = await self._pilot(key, kind)
        before = await self._server.get("/debug/state", StateAnswer)
        bench = self._bench(kind, self._count(kind, concurrency), seed or key)
        summary = await bench.peak(key, concurrency)
        after = await self._server.get("/debug/state", StateAnswer)
        samples = await asyncio.to_thread(_samples, self._folder / key / RECORDS)
        gained = _gained(before.totals, after.totals) | _gained(before.worker_totals, after.worker_totals, "worker_")
        return _cell(key, kind, concurrency, summary, samples, gained)

    async def _pilot(self, key: str, kind: RequestClass) -> float:
        """Seconds of a request alone; also warms up what the first requests of a kind pay for."""
        await self._bench(kind, _PILOT_REQUESTS, f"{key}:pilot").peak(f"{key}-pilot", 1)
        samples = await asyncio.to_thread(_samples, self._folder / f"{key}-pilot" / RECORDS)
        return min(samples.e2el_ms, default=self._plan.timeout_s * 1e3) / 1e3

    def _bench(self, kind: RequestClass, count: int, seed: str) -> Bench:
        spec = LoadSpec(
            classes=(kind,),
            num_requests=count,
            num_warmup=0,
            num_cooldown=0,
            seed=f"{self._plan.seed}:{seed}",
            timeout_s=self._plan.timeout_s,
            num_processes=1,
        )
        return Bench(self._folder, self._target, self._dialect, spec, self._watcher)

    def _count(self, kind: RequestClass, concurrency: int) -> int:
        """As many as should end in time, if side by side is no slower than one after the other."""
        alone_s = self._alone_s[kind.images, kind.image_width]
        wanted = math.ceil(self._plan.seconds_per_cell / max(alone_s, 1e-4))
        return max(_MIN_REQUESTS, _PER_OPEN * concurrency, min(wanted, _MAX_REQUESTS))


def _cell(
    key: str,
    kind: RequestClass,
    concurrency: int,
    summary: CellSummary,
    samples: Samples,
    gained: Mapping[str, float],
) -> Cell:
    total, latencies = summary.total, summary.total.latencies
    return Cell(
        key=key,
        concurrency=concurrency,
        num_images=kind.images,
        image_size=kind.image_size if kind.images else None,
        output_tokens=kind.output_tokens,
        num_requests=total.num_attempted,
        outcomes=total.outcomes,
        throughput=summary.throughput,
        ttft=latencies.wire_ttft if latencies else None,
        tpot=latencies.tpot if latencies else None,
        e2el=latencies.wire_e2el if latencies else None,
        prompt_tokens=total.mean_prompt_tokens,
        stages=latencies.stages if latencies else None,
        share_cached_tokens=_share(gained, "cached_tokens", "prompt_tokens"),
        share_avoided_pictures=_avoided(gained),
        samples=samples,
    )


def _gained(before: Mapping[str, float], after: Mapping[str, float], prefix: str = "") -> dict[str, float]:
    return {prefix + name: value - before.get(name, 0.0) for name, value in after.items()}


def _avoided(gained: Mapping[str, float]) -> float:
    avoided = sum(count for name, count in gained.items() if name.startswith(f"worker_{AVOIDED}"))
    return avoided / gained["prompt_media_items"] if gained.get("prompt_media_items") else 0.0


def _share(gained: Mapping[str, float], part: str, whole: str) -> float:
    return gained.get(part, 0.0) / gained[whole] if gained.get(whole) else 0.0


def _samples(path: Path) -> Samples:
    lines = [msgspec.json.decode(line)["metrics"] for line in path.read_bytes().splitlines()]
    return Samples(
        ttft_ms=_values(lines, "time_to_first_token"),
        tpot_ms=_values(lines, "inter_token_latency"),
        e2el_ms=_values(lines, "request_latency"),
    )


def _values(lines: list[dict[str, Any]], name: str) -> tuple[float, ...]:
    return tuple(round(line[name]["value"], 3) for line in lines if name in line)
