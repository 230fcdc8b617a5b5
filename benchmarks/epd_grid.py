"""Which topology answers first: agg, e-pd and auto on equal resources, over images x visual tokens x output x load.

Each topology has two worker processes with one thread each (e-p-d, where asked for, has three). All servers stay up;
for every cell and seed they take turns, in random order, with the same schedule and the same pictures. Loads are shares
of what agg can do in the cell. Cells are measured in an order that covers all levels evenly wherever it ends, and kept
as they finish: a run that was cut short goes on with --resume.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.epd import scenarios
from benchmarks.epd.cells import SIDE_OF_TOKENS, Cell, all_cells, body_of, in_balance
from benchmarks.epd.fleets import WORKERS, Server, servers, used
from benchmarks.epd.progress import Progress
from benchmarks.epd.verdicts import summarise, tally
from benchmarks.gateway_tax import RESULTS, ROOT
from benchmarks.open_loop import capacity_per_s, poisson_schedule, run_schedule

TOPOLOGIES = ("agg", "e-pd", "auto")
CAPACITY_CONCURRENCY = 4
TIMEOUT_S = 120.0
SCENARIOS = {"mixed": scenarios.mixed, "repeat": scenarios.repeat, "forwarding": scenarios.forwarding}


def capacity_of(cell: Cell, running: dict[str, Server], progress: Progress, num_requests: int) -> float:
    """Requests per second that agg answers of a cell's kind; measured once. Every server meets the kind before."""
    known = progress.found(capacity_of=cell.kind)
    if known:
        return float(known[0]["per_s"])
    warm = [body_of(cell, f"capacity {number}") for number in range(num_requests)]
    for server in running.values():
        asyncio.run(capacity_per_s(server.address, warm, CAPACITY_CONCURRENCY))
    fresh = [body_of(cell, f"fresh {number}") for number in range(num_requests)]
    per_s = asyncio.run(capacity_per_s(running["agg"].address, fresh, CAPACITY_CONCURRENCY))
    progress.add({"capacity_of": cell.kind, "per_s": per_s})
    return per_s


def measure_cell(cell: Cell, running: dict[str, Server], progress: Progress, args: argparse.Namespace) -> None:
    """One row per seed and topology; those that are there already are kept, if all of a seed are."""
    rate = cell.load * capacity_of(cell, running, progress, args.capacity_requests)
    for seed in range(args.seeds):
        if len(progress.found(cell=str(cell), seed=seed)) == len(running):
            continue
        count = max(4, min(args.requests, round(args.seconds * rate)))
        schedule = poisson_schedule(count, rate, f"{cell} {seed}")
        bodies = [body_of(cell, f"{cell} {seed} {number}") for number in range(count)]
        rows = []
        for name in random.sample(list(running), len(running)):
            with used(running[name]) as shares:
                answers = asyncio.run(run_schedule(running[name].address, bodies, schedule, TIMEOUT_S))
            row: dict[str, Any] = {"cell": str(cell), "shape": vars(cell), "seed": seed, "topology": name}
            rows.append(row | {"rate_per_s": round(rate, 4), "used": shares, "answers": [one.row() for one in answers]})
        for row in rows:
            progress.add(row)


def measure(cells: Sequence[Cell], running: dict[str, Server], progress: Progress, args: argparse.Namespace) -> None:
    """As many cells as there is time for; the next one is taken to need what the longest one needed."""
    start_s, longest_s = time.monotonic(), 0.0
    for number, cell in enumerate(cells):
        cell_start_s = time.monotonic()
        if args.minutes and cell_start_s + longest_s > start_s + 60 * args.minutes:
            print(f"  {args.minutes:g} minutes are over: {number} of {len(cells)} cells", file=sys.stderr)
            return
        measure_cell(cell, running, progress, args)
        longest_s = max(longest_s, time.monotonic() - cell_start_s)
        print(f"  {number + 1}/{len(cells)}  {cell}  {time.monotonic() - cell_start_s:.0f} s", file=sys.stderr)


def grid(args: argparse.Namespace) -> dict[str, Any]:
    """The summary of all cells that are complete, and what they were made from."""
    cells = in_balance(all_cells(args.images, args.tokens, args.outputs, args.loads), args.order_seed)
    progress = Progress(args.scratch or ROOT / "scratch" / f"{args.name}.jsonl", resume=args.resume)
    with servers(args.topologies) as running:
        measure(cells, running, progress, args)
    summary = []
    for cell in sorted(cells, key=lambda one: tuple(vars(one).values())):
        rows = progress.found(cell=str(cell))
        if len(rows) >= args.seeds * len(args.topologies):
            summary.append(summarise(rows, cell, args.topologies))
    return {"summary": summary, "tally": tally(summary), "topologies": list(args.topologies), "rows": progress.rows}


def parsed(argv: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks epd_grid", description=__doc__)
    parser.add_argument("--scenario", choices=SCENARIOS, help="answer this question instead of measuring the grid")
    parser.add_argument("--topologies", nargs="+", default=TOPOLOGIES, choices=WORKERS)
    parser.add_argument("--images", type=int, nargs="+", default=[0, 1, 2, 4, 8])
    parser.add_argument("--tokens", type=int, nargs="+", default=[64, 256], choices=SIDE_OF_TOKENS)
    parser.add_argument("--outputs", type=int, nargs="+", default=[16, 128, 512])
    parser.add_argument("--loads", type=float, nargs="+", default=[0.3, 0.6, 0.85])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=200, help="most requests of one run; of scenarios, how many")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of one run's schedule")
    parser.add_argument("--minutes", type=float, default=0.0, help="measure the cells for which there is time; 0: all")
    parser.add_argument("--order-seed", type=int, default=0, help="of the order in which cells are measured")
    parser.add_argument("--resume", action="store_true", help="go on with what an earlier run of this name measured")
    parser.add_argument("--scratch", type=Path, help="file for what was measured so far; default scratch/NAME.jsonl")
    parser.add_argument("--capacity-requests", type=int, default=16)
    parser.add_argument("--pause-pid-file", type=Path, help="stop the process it names while measuring")
    parser.add_argument("--name", help="end of the result file's name")
    args = parser.parse_args(argv)
    args.name = args.name or (f"epd-{args.scenario}" if args.scenario else "epd-grid")
    if "agg" not in args.topologies:
        parser.error("loads are shares of agg's capacity: --topologies needs agg")
    return args


def main(argv: list[str]) -> None:
    """Measure and write one result file."""
    args = parsed(argv)
    described = machine.describe()
    with machine.paused(args.pause_pid_file):
        found = SCENARIOS[args.scenario](args) if args.scenario else grid(args)
    path = RESULTS / f"{time.strftime('%Y-%m-%d')}-{args.name}.json"
    path.write_text(json.dumps({"machine": described} | found, indent=1) + "\n")
    print(json.dumps({name: value for name, value in found.items() if name != "rows"}, indent=1))
    print(f"written: benchmarks/results/{path.name}")
