"""Requests without end against a split fleet in this process: faults in some transfers, clients that leave.

Every answer's tokens are compared with those of a worker that nothing happens to. In the end every request must be
accounted for, memory must not have grown, and nothing may be held.
"""

import argparse
import asyncio
import itertools
import json
import math
import os
import random
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks import machine
from chiasm.connectors.faulty import Fault as Tampering
from chiasm.faults.client import FINISHED
from chiasm.faults.fault import Direction, Fault, Tensor
from chiasm.faults.idle import offered_by, what_stays
from chiasm.faults.judgement import attempts_of
from chiasm.faults.questions import Question, about
from chiasm.faults.rig import Rig, reference, rig, with_fleet
from chiasm.faults.trial import References
from chiasm.settings import Settings, resolve

RESULTS = Path(__file__).parent / "results"
TOPOLOGIES = {
    "e-pd": {"encoders": 2, "prefills": 1},
    "e-p-d": {"encoders": 2, "prefills": 1, "decodes": 1},
    "auto": {"workers": 2},
}
KINDS: dict[Direction, tuple[Any, ...]] = {"put": ("full", "drop", "duplicate"), "get": ("truncate", "corrupt")}
CACHE_BYTES = 2**20
WARM_UP_SHARE = 0.5
NUM_SAMPLES = 400
SAMPLES_A_LINE = 10
USUAL_WEIGHT = 0.05
EXPLAINED = (
    FINISHED,
    "overloaded",
    "embedding_unavailable",
    "transfer_failed",
    "checksum_mismatch",
    "layout_mismatch",
)
"""Ends that a fault can be the reason of: those of requests that met a second one on their way down."""


class RandomFaults(Fault):
    """Each transfer meets one with a probability of its own."""

    def __init__(self, share: float, seed: int) -> None:
        super().__init__()
        self._share = share
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self.num_transfers = 0

    def tampering(self, direction: Direction, tensor: Tensor) -> Tampering | None:
        with self._lock:
            self.num_transfers += 1
            if self._random.random() >= self._share:
                return None
            self.num_met += 1
            return Tampering(kind=self._random.choice(KINDS[direction]))


@dataclass
class Tally:
    """What came of the requests, and memory on the way: pairs of requests ended and resident bytes."""

    num_asked: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    num_wrong: int = 0
    unexplained: list[dict[str, Any]] = field(default_factory=list)
    memory: list[tuple[int, int]] = field(default_factory=list)


class Soak:
    """Sends requests from several clients at once."""

    def __init__(self, fleet: Rig, questions: list[tuple[Question, list[str]]], args: argparse.Namespace) -> None:
        self._fleet = fleet
        self._questions = questions
        self._args = args
        self._random = random.Random(args.seed)
        self._numbers = iter(range(args.requests))
        self._started_s = 0.0
        self._usual_s = 0.1
        self.tally = Tally()

    async def run(self) -> None:
        self._started_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(self._args.clients):
                group.create_task(self._client())

    async def _client(self) -> None:
        while self._elapsed_s() < self._args.seconds and (number := next(self._numbers, None)) is not None:
            self.tally.num_asked += 1
            question, right = self._random.choice(self._questions)
            asked_s, asking = time.perf_counter(), asyncio.create_task(self._fleet.client.ask(question))
            if self._random.random() < self._args.leave:
                await asyncio.wait({asking}, timeout=self._random.uniform(0.0, self._usual_s))
                asking.cancel()
            else:
                await asyncio.wait({asking})
                self._usual_s += USUAL_WEIGHT * (time.perf_counter() - asked_s - self._usual_s)
            await asyncio.wait({asking})
            self._note(asking, right)
            if number % max(1, self._args.requests // NUM_SAMPLES) == 0:
                self.tally.memory.append((number, resident_bytes()))
                self._report(number)

    def _elapsed_s(self) -> float:
        return time.perf_counter() - self._started_s

    def _report(self, number: int) -> None:
        if len(self.tally.memory) % SAMPLES_A_LINE == 1:
            memory, ends = self.tally.memory[-1][1] / 2**20, dict(self.tally.ends)
            print(
                f"{self._elapsed_s():6.0f} s: {number:,} of {self._args.requests:,}, {memory:,.0f} MiB, {ends}",
                file=sys.stderr,
            )

    def _note(self, asking: "asyncio.Task[Any]", right: list[str]) -> None:
        if asking.cancelled():
            self.tally.ends["left"] += 1
            return
        answer = asking.result()
        self.tally.ends[answer.outcome] += 1
        self.tally.num_wrong += answer.outcome == FINISHED and answer.tokens != right
        if answer.outcome not in EXPLAINED:
            receipt = self._fleet.gateway.receipts.get(answer.receipt_id)
            attempts = [f"{one.stage} {one.worker} {one.outcome}" for one in attempts_of(receipt)]
            self.tally.unexplained.append(msgspec.to_builtins(answer) | {"attempts": attempts})


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def slope(memory: list[tuple[int, int]]) -> float:
    """Bytes per request, by least squares, after the warm-up."""
    after = memory[int(WARM_UP_SHARE * len(memory)) :]
    if len(after) < 2:
        return 0.0
    ended, resident = np.array(after, dtype=float).T
    return float(np.polyfit(ended, resident, 1)[0])


def server_counts(fleet: Rig) -> dict[str, float]:
    """What the gateway counted: requests received, and those ended by outcome."""
    counts: dict[str, float] = {}
    for metric in fleet.gateway.metrics.registry.collect():
        for sample in metric.samples:
            if sample.name == "chiasm_requests_received_total":
                counts["received"] = counts.get("received", 0.0) + sample.value
            if sample.name == "chiasm_requests_total":
                counts[sample.labels["outcome"]] = counts.get(sample.labels["outcome"], 0.0) + sample.value
    return counts


def present() -> dict[str, int]:
    """What must not become more: tasks, threads, open files, shared memory."""
    return {
        "tasks": len(asyncio.all_tasks()),
        "threads": threading.active_count(),
        "files": len(list(Path("/proc/self/fd").iterdir())),
    }


def settings_for(topology: str) -> Settings:
    """A fleet with caches so small that they have to let go all the time."""
    base = resolve(environment={}).settings
    engine = msgspec.structs.replace(base.engine, embedding_cache_bytes=CACHE_BYTES, prefix_cache_bytes=4 * CACHE_BYTES)
    counts = TOPOLOGIES[topology]
    return with_fleet(msgspec.structs.replace(base, engine=engine), topology, **counts)  # type: ignore[arg-type]


def questions_of(count: int) -> list[Question]:
    """Half of them text; of the others, every fourth has two pictures."""
    numbers = itertools.count(10**6)
    asked: list[Question] = []
    for index in range(count):
        if index % 2:
            asked.append(Question(f"Tell me about number {index}.", max_tokens=2 + index % 7))
        else:
            shown = tuple(itertools.islice(numbers, 2 if index % 8 == 0 else 1))
            asked.append(about(shown, f"What is {index}?", max_tokens=2 + index % 5))
    return asked


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run it; returns the result."""
    settings, fault = settings_for(args.topology), RandomFaults(args.faults, args.seed)
    async with reference(settings, lambda *_: None) as client:
        references = References(client)
        asked = [await references.asked("", question) for question in questions_of(args.questions)]
    async with rig(settings, lambda *_: None, in_processes=False) as fleet:
        before, started_s = present(), time.perf_counter()
        soak = Soak(fleet, [(one.question, one.right) for one in asked], args)
        with fleet.watch.over(fault, None):
            await soak.run()
        took_s = time.perf_counter() - started_s
        stays = await what_stays(offered_by, fleet)
        after, counted = present(), server_counts(fleet)
    tally = soak.tally
    return {
        "requests": tally.num_asked,
        "ends": dict(tally.ends),
        "wrong_answers": tally.num_wrong,
        "unexplained": tally.unexplained,
        "server": counted,
        "transfers": fault.num_transfers,
        "faults": fault.num_met,
        "requests_per_s": tally.num_asked / took_s,
        "rss_bytes_per_request": slope(tally.memory),
        "rss_bytes": {"first": tally.memory[0][1], "last": tally.memory[-1][1]} if tally.memory else {},
        "stays": stays,
        "before": before,
        "after": after,
        "memory": tally.memory,
    }


def complaints(result: dict[str, Any]) -> list[str]:
    """What is not as it must be."""
    server = dict(result["server"])
    received, ended = server.pop("received", 0.0), sum(server.values())
    found = {
        "nothing was asked": result["requests"] == 0,
        "requests of clients are not accounted for": sum(result["ends"].values()) != result["requests"],
        "requests of the server are not accounted for": received != ended,
        "requests ended in ways that no fault explains": not set(result["ends"]) <= {"left", *EXPLAINED},
        "answers are wrong": result["wrong_answers"] > 0,
        "something stays": bool(result["stays"]),
        "tasks are left": result["after"]["tasks"] > result["before"]["tasks"],
    }
    return [what for what, is_so in found.items() if is_so]


def main(argv: list[str]) -> None:
    """Run, write one result file, and end with status 1 when something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks soak", description=__doc__)
    parser.add_argument("--topology", choices=TOPOLOGIES, default="e-p-d")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=math.inf, help="ask no more after that long")
    parser.add_argument("--clients", type=int, default=8, help="requests under way at once")
    parser.add_argument("--questions", type=int, default=120, help="different requests")
    parser.add_argument("--faults", type=float, default=0.0078, help="share of transfers; a request makes about three")
    parser.add_argument("--leave", type=float, default=0.14, help="share of clients that leave if not answered soon")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="soak", help="end of the result file's name")
    args = parser.parse_args(argv)
    for name in ("requests", "seconds", "clients", "questions"):
        if not vars(args)[name] > 0:  # nor is nan
            parser.error(f"--{name} must be more than 0")
    for name in ("faults", "leave"):
        if not 0 <= vars(args)[name] <= 1:
            parser.error(f"--{name} is a share, from 0 to 1")
    described = machine.describe()
    result = asyncio.run(measure(args))
    wrong = complaints(result)
    print(json.dumps({key: value for key, value in result.items() if key != "memory"} | {"wrong": wrong}, indent=1))
    path = RESULTS / f"{time.strftime('%Y-%m-%d')}-{args.name}.json"
    path.write_text(json.dumps({"machine": described, "topology": args.topology, "wrong": wrong} | result) + "\n")
    print(f"written: benchmarks/results/{path.name}")
    raise SystemExit(1 if wrong else 0)
