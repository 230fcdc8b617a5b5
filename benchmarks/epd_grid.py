"""Which topology answers first: agg, e-pd and auto on equal resources, over images x visual tokens x output x load.

Each topology has two worker processes with one thread each. All servers stay up; for every cell and seed they take
turns, in random order, with the same schedule and the same pictures. Loads are shares of what agg can do in the cell.
"""

import argparse
import asyncio
import base64
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from benchmarks import machine
from benchmarks.gateway_tax import RESULTS, free_port, process, wait_ready
from benchmarks.open_loop import Answer, capacity_per_s, poisson_schedule, run_schedule

TOPOLOGIES = ("agg", "e-pd", "auto")
FIXED = ("agg", "e-pd")
SIDE_OF_TOKENS = {64: 256, 256: 512}  # one visual token is 32 x 32 pixels
CAPACITY_CONCURRENCY = 4
NUM_RESAMPLES = 2000
TIMEOUT_S = 120.0
COLOURS = ("red", "green", "blue", "yellow", "black", "purple", "orange")


@dataclass(frozen=True)
class Cell:
    """One kind of request at one load (share of agg's capacity)."""

    images: int
    tokens: int
    output: int
    load: float

    def __str__(self) -> str:
        return f"{self.images} images x {self.tokens} tokens, output {self.output}, load {self.load:g}"


@contextmanager
def servers(topologies: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """Addresses by topology."""
    with ExitStack() as stack:
        addresses = {}
        for topology in topologies:
            port = free_port()
            words = ("chiasm", "serve", "--json", "--port", str(port), "--topology", topology, "--log-level", "warning")
            stack.enter_context(process(*words, "--set", "engine.threads=1", threads=1))
            addresses[topology] = f"http://127.0.0.1:{port}"
            wait_ready(addresses[topology])
        yield addresses


def picture(rng: random.Random, side: int) -> str:
    """A data URL nobody has seen: some shapes at random."""
    image = Image.new("RGB", (side, side), tuple(rng.choices(range(160, 256), k=3)))
    pen = ImageDraw.Draw(image)
    for _ in range(3):
        x, y, size = rng.randrange(side), rng.randrange(side), rng.randrange(side // 8, side // 2)
        pen.ellipse((x, y, x + size, y + size), fill=rng.choice(COLOURS))
    file = BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def body(cell: Cell, seed: str) -> bytes:
    """One request; its answer has exactly `cell.output` tokens."""
    rng = random.Random(seed)
    side = SIDE_OF_TOKENS[cell.tokens]
    content: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": picture(rng, side)}} for _ in range(cell.images)
    ]
    content.append({"type": "text", "text": f"Request {rng.randrange(10**9)}: what is there?"})
    request = {"messages": [{"role": "user", "content": content}], "stream": True, "temperature": 0}
    return json.dumps(request | {"max_tokens": cell.output, "min_tokens": cell.output, "ignore_eos": True}).encode()


def measure(addresses: dict[str, str], cells: list[Cell], args: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per cell, seed and topology."""
    rows: list[dict[str, Any]] = []
    capacities: dict[tuple[int, int, int], float] = {}
    for number, cell in enumerate(cells):
        kind = (cell.images, cell.tokens, cell.output)
        if kind not in capacities:
            warm = [body(cell, f"capacity {n}") for n in range(args.capacity_requests)]
            for address in addresses.values():  # so that every server has met this kind of request
                capacities[kind] = asyncio.run(capacity_per_s(address, warm, CAPACITY_CONCURRENCY))
            capacities[kind] = asyncio.run(capacity_per_s(addresses["agg"], _fresh(cell, args), CAPACITY_CONCURRENCY))
        rate = cell.load * capacities[kind]
        for seed in range(args.seeds):
            count = max(4, min(args.requests, round(args.seconds * rate)))
            schedule = poisson_schedule(count, rate, f"{cell} {seed}")
            bodies = [body(cell, f"{cell} {seed} {n}") for n in range(count)]
            for topology in random.sample(list(addresses), len(addresses)):
                answers = asyncio.run(run_schedule(addresses[topology], bodies, schedule, TIMEOUT_S))
                rows.append(_row(cell, seed, topology, rate, answers))
        print(f"  {number + 1}/{len(cells)}  {cell}: {rate:.2f} requests/s", file=sys.stderr)
    return rows


def _fresh(cell: Cell, args: argparse.Namespace) -> list[bytes]:
    return [body(cell, f"fresh {n}") for n in range(args.capacity_requests)]


def _row(cell: Cell, seed: int, topology: str, rate: float, answers: list[Answer]) -> dict[str, Any]:
    shape = {"images": cell.images, "tokens": cell.tokens, "output": cell.output, "load": cell.load}
    return {
        **shape,
        "seed": seed,
        "topology": topology,
        "rate_per_s": round(rate, 4),
        "answers": [answer.row() for answer in answers],
    }


def difference(rows: list[dict[str, Any]], ours: str, theirs: str, figure: str) -> dict[str, float]:
    """Mean of ours over mean of theirs, with a 95 % interval from resampling requests, each with its pair."""
    pairs = []
    for row in rows:
        if row["topology"] == ours:
            other = next(one for one in rows if one["topology"] == theirs and one["seed"] == row["seed"])
            both = zip(row["answers"], other["answers"], strict=True)
            pairs += [(a[figure], b[figure]) for a, b in both if not a["error"] and not b["error"]]
    rng = random.Random(0)
    ratios = sorted(_ratio(rng.choices(pairs, k=len(pairs))) for _ in range(NUM_RESAMPLES))
    return {
        "ratio": _ratio(pairs),
        "low": ratios[int(0.025 * NUM_RESAMPLES)],
        "high": ratios[int(0.975 * NUM_RESAMPLES) - 1],
        "pairs": len(pairs),
    }


def _ratio(pairs: list[tuple[float, float]]) -> float:
    return sum(a for a, _ in pairs) / sum(b for _, b in pairs)


def summarise(rows: list[dict[str, Any]], cells: list[Cell], topologies: tuple[str, ...]) -> list[dict[str, Any]]:
    """Means by topology; auto against agg and against the best fixed topology."""
    summary = []
    for cell in cells:
        here = [row for row in rows if Cell(row["images"], row["tokens"], row["output"], row["load"]) == cell]
        entry: dict[str, Any] = {"cell": str(cell), "means": {}, "errors": {}, "auto": {}}
        for topology in topologies:
            answers = [one for row in here if row["topology"] == topology for one in row["answers"]]
            good = [one for one in answers if not one["error"]]
            entry["errors"][topology] = len(answers) - len(good)
            for figure in ("first_token_s", "end_s"):
                entry["means"].setdefault(figure, {})[topology] = statistics.fmean(one[figure] for one in good)
        for figure, means in entry["means"].items():
            best = min((one for one in topologies if one in FIXED), key=means.__getitem__)
            entry["auto"][figure] = {"best fixed": best, "against best": difference(here, "auto", best, figure)}
            entry["auto"][figure]["against agg"] = difference(here, "auto", "agg", figure)
        summary.append(entry)
    return summary


def main(argv: list[str]) -> None:
    """Measure and write one result file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks epd_grid", description=__doc__)
    parser.add_argument("--images", type=int, nargs="+", default=[0, 1, 2, 4, 8])
    parser.add_argument("--tokens", type=int, nargs="+", default=[64, 256], choices=SIDE_OF_TOKENS)
    parser.add_argument("--outputs", type=int, nargs="+", default=[16, 128, 512])
    parser.add_argument("--loads", type=float, nargs="+", default=[0.3, 0.6, 0.85])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=200, help="most requests of one run")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of one run's schedule")
    parser.add_argument("--capacity-requests", type=int, default=16)
    parser.add_argument("--pause-pid-file", type=Path, help="stop the process it names while measuring")
    parser.add_argument("--name", default="epd-grid", help="end of the result file's name")
    args = parser.parse_args(argv)
    cells = [
        Cell(images, tokens, output, load)
        for images, tokens, output, load in product(args.images, args.tokens, args.outputs, args.loads)
        if images or tokens == args.tokens[0]  # without images their size means nothing
    ]
    described = machine.describe()
    with machine.paused(args.pause_pid_file), servers(TOPOLOGIES) as addresses:
        rows = measure(addresses, cells, args)
    result = {"machine": described, "summary": summarise(rows, cells, TOPOLOGIES), "rows": rows}
    path = RESULTS / f"{time.strftime('%Y-%m-%d')}-{args.name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["summary"], indent=1))
    print(f"written: benchmarks/results/{path.name}")
