"""What changes when a fleet has thousands of workers: `docs/scale.md` has the numbers.

Simulated ones do not depend on the machine; sizes are counted by the allocator. Nothing here is a time that was taken.
"""

import argparse
import json
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np

from benchmarks.machine import describe
from benchmarks.simulator_scale import CLASSES, COSTS
from chiasm.protocol.worker import Worker, WorkerInfo
from chiasm.routing.clock import SystemClock
from chiasm.routing.coverage.embeddings import EmbeddingIndex
from chiasm.routing.coverage.prefixes import Prefix, PrefixOwners
from chiasm.routing.fleet import Fleet
from chiasm.settings import RoutingSettings
from chiasm.simulator.cluster import Cluster, aggregated, disaggregated
from chiasm.simulator.prompt import ON_OFFER
from chiasm.simulator.run import simulate
from chiasm.simulator.traffic import RequestClass, Traffic

CANDIDATES = (4, 12, 32)
GATEWAYS = ((8, False), (64, False), (64, True))
"""How many, and whether requests with pictures in common come to the same; one is among `CANDIDATES`, with 12."""
NUM_CELLS = 10
CELL_GATEWAYS = 7
RATE_PER_WORKER = 3.0
REPEATS_WITHIN_S = 1.0
"""Pictures that come again are those of one of the requests that brought new ones in so long before."""

Run = Callable[[], dict[str, Any]]
"""A simulation, not begun yet."""


def simulated(cluster: Cluster, num_requests: int, what: dict[str, Any], **options: Any) -> dict[str, Any]:
    """What requests wait for, and how many found what others had computed."""
    rate = RATE_PER_WORKER * len(cluster.workers)
    classes = tuple(_repeating(one, rate) for one in CLASSES)
    traffic = Traffic(classes=classes, rate_per_s=rate, num_requests=num_requests, seed=1)
    record = simulate(cluster, traffic, COSTS, **options).record
    half = record.ttft_s[len(record) // 2 :]  # the fleet was empty for the first
    return what | {
        "fleet": cluster.name,
        "ttft_mean_ms": round(1e3 * float(half.mean()), 1),
        "ttft_p99_ms": round(1e3 * float(np.percentile(half, 99)), 1),
        "covered_share": round(record.paths.get("covered", 0) / len(record), 3),
    }


def _repeating(kind: RequestClass, rate_per_s: float) -> RequestClass:
    num_new = rate_per_s / len(CLASSES) * (1.0 - kind.repeat_share) * REPEATS_WITHIN_S
    return msgspec.structs.replace(kind, repeat_among=max(1, round(num_new)))


def fleets(num_workers: int) -> list[Cluster]:
    """One that splits nothing, and one with a fifth of encoders."""
    encoders = max(1, num_workers // 5)
    return [aggregated(num_workers), disaggregated(encoders, num_workers - encoders)]


def by_candidates(num_workers: int, num_requests: int) -> Iterator[Run]:
    """How many workers of a kind a request is planned over."""
    for cluster in fleets(num_workers):
        for count in CANDIDATES:
            yield partial(simulated, cluster, num_requests, {"candidates": count}, max_candidates=count)


def by_gateways(num_workers: int, num_requests: int) -> Iterator[Run]:
    """How many gateways there are that know nothing of each other's requests."""
    for cluster in fleets(num_workers):
        for count, together in GATEWAYS:
            what = {"gateways": count, "keeps_together": together}
            yield partial(simulated, cluster, num_requests, what, num_gateways=count, keeps_together=together)


def in_a_cell(num_workers: int, num_requests: int) -> Iterator[Run]:
    """One of the cells into which a fleet may be split, with its part of requests and a few gateways."""
    for cluster in fleets(num_workers // NUM_CELLS):
        what = {"gateways": CELL_GATEWAYS, "workers": num_workers // NUM_CELLS}
        options = {"num_gateways": CELL_GATEWAYS, "keeps_together": True}
        yield partial(simulated, cluster, num_requests // NUM_CELLS, what, **options)


PARTS = {"candidates": by_candidates, "gateways": by_gateways, "cell": in_a_cell}


def sizes(num_workers: int) -> dict[str, float]:
    """Bytes that a router holds for each worker, picture and start of a prompt that it knows of."""
    clock, pictures, starts = SystemClock(), 16_384, 65_536
    fleet = Fleet(RoutingSettings(), clock)

    def join() -> None:
        for number in range(num_workers):
            fleet.add(f"worker-{number}", cast("Worker", SimpleNamespace(info=_info(f"worker-{number}"))))

    index, owners = EmbeddingIndex(clock), PrefixOwners()

    def offer() -> None:
        for number in range(pictures):
            handle = msgspec.structs.replace(ON_OFFER, key=f"{number:064x}")
            index.offered(f"{number:064x}", handle, f"worker-{number % num_workers}")

    def serve() -> None:
        for number in range(starts):
            owners.served([Prefix(f"{number:064x}", 512, ())], f"worker-{number % num_workers}")

    return {
        "bytes_per_worker": round(_grown(join) / num_workers),
        "bytes_per_picture": round(_grown(offer) / pictures),
        "bytes_per_start": round(_grown(serve) / starts),
    }


def _info(name: str) -> WorkerInfo:
    return WorkerInfo(
        name=name,
        model="m",
        family="f",
        roles=("prefill", "decode"),
        dtype="bfloat16",
        device="cuda:0",
        max_model_tokens=32_768,
        takes_images=True,
        model_revision="r",
        processor_revision="r",
        started_at_unix_s=0.0,
    )


def _grown(work: Any) -> int:
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    work()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return after - before


def _kept(path: Path | None, num_workers: int, num_requests: int) -> dict[str, Any]:
    """Rows of a run that was interrupted: simulated figures hang on nothing but these numbers and the code."""
    if path is None or not path.exists():
        return {}
    found: dict[str, Any] = json.loads(path.read_bytes())
    same, commit = (found["workers"], found["requests"]) == (num_workers, num_requests), describe()["commit"]
    return found if same and found["machine"]["commit"] == commit and not commit.endswith("-dirty") else {}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks scale", description=__doc__)
    parser.add_argument("--workers", type=int, default=1_000)
    parser.add_argument("--requests", type=int, default=15_000)
    parser.add_argument(
        "--output", type=Path, help="write the results as JSON, row by row; go on with it if it is there"
    )
    options = parser.parse_args(arguments)
    kept = _kept(options.output, options.workers, options.requests)
    head = {"benchmark": "scale", "machine": describe(), "workers": options.workers, "requests": options.requests}
    found: dict[str, Any] = {
        "sizes": kept.get("sizes") or sizes(options.workers),
        "candidates": [],
        "gateways": [],
        "cell": [],
    }
    print(json.dumps(found["sizes"]), flush=True)
    for name, runs in PARTS.items():
        known = kept.get(name, [])
        for number, run in enumerate(runs(options.workers, options.requests)):
            found[name].append(known[number] if number < len(known) else run())
            print(json.dumps(found[name][-1]), flush=True)
            if options.output is not None:
                options.output.write_text(json.dumps(head | found, indent=1) + "\n")
