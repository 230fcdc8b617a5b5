"""What handing an embedding from one process to another costs, against copying it in memory and against a file.

Ways take turns, in random order. A turn is a burst of tensors of the same bytes, which the producer has just read (as
it has when it computed them); its row is the burst's medians. A hand-over is the producer's `put` and the consumer's
`get`, timed in their own processes; telling the consumer the address is left out, since that is the request's way and
not the tensor's. "Checked" adds that the consumer reads every byte for the checksum. All memory has been used before,
as a pool's has. With one tensor offered at a time it stays in the processor's cache; where more stay offered, their
memory comes in turn, and so do the yardstick's targets.
"""

import argparse
import json
import mmap
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.ratios import median_ratio
from benchmarks.transfer_ways import TTL_S, open_ways
from chiasm.connectors.base import checksum

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
# name -> bytes, tensors that are offered at once: with one, its memory stays in the processor's cache
CELLS = {"64 KB": (2**16, 1), "1 MB": (2**20, 1), "1 MB, 48 in turn": (2**20, 48), "16 MB": (2**24, 1)}
MEMORY = "memcpy"
BURST = 8
Row = dict[str, float]


@contextmanager
def consumer(folder: Path) -> Iterator[subprocess.Popen]:
    """The other process."""
    running = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.transfer_ways", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
        bufsize=1,
        start_new_session=True,
    )
    machine.prefer(running.pid)
    try:
        assert running.stdout is not None
        running.stdout.readline()
        yield running
    finally:
        assert running.stdin is not None
        running.stdin.close()
        running.wait(30)


class Copying:
    """The yardstick: the same bytes copied to memory that is in use already and starts at a page, and read there."""

    def __init__(self, num_bytes: int, num_targets: int) -> None:
        memory = np.frombuffer(mmap.mmap(-1, num_bytes * num_targets), np.uint8)
        self._targets = memory.reshape(num_targets, num_bytes)

    def __call__(self, source: np.ndarray, number: int) -> Row:
        target = self._targets[number % len(self._targets)]
        started = time.perf_counter()
        np.copyto(target, source)
        copied = time.perf_counter()
        checksum(target.data)
        read = time.perf_counter()
        return {"hand_over": copied - started, "checked": read - started, "put": copied - started, "get": 0.0}


class HandingOver:
    """One way to the other process, with so many tensors offered at once."""

    def __init__(self, other: subprocess.Popen, name: str, way: Any, num_offered: int) -> None:
        assert other.stdin is not None
        assert other.stdout is not None
        self._ask, self._answer = other.stdin.write, other.stdout.readline
        self._name, self._way, self._num_offered = name, way, num_offered

    def __call__(self, source: np.ndarray, number: int) -> Row:
        if number >= self._num_offered:
            self._way.drop(str(number - self._num_offered))
        expected = checksum(source.data)
        started = time.perf_counter()
        address = self._way.put(str(number), source.data, ttl_s=TTL_S)
        put_s = time.perf_counter() - started
        self._ask(f"{self._name} {address} {source.nbytes}\n")
        *times, found = self._answer().split()
        assert found == expected, f"{self._name} changed the bytes"
        get_s, read_s, ended = map(float, times)
        both = put_s + get_s
        return {"hand_over": both, "checked": both + read_s, "put": put_s, "get": get_s, "wall": ended - started}

    def close(self, number: int) -> None:
        """Drop what is offered after so many tensors."""
        for key in range(max(0, number - self._num_offered), number):
            self._way.drop(str(key))


def burst(turn: Callable[[np.ndarray, int], Row], source: np.ndarray, first: int) -> Row:
    """Medians of a few tensors in a row."""
    rows = []
    for number in range(first, first + BURST):
        checksum(source.data)
        rows.append(turn(source, number))
    return {figure: statistics.median(row[figure] for row in rows) for figure in rows[0]}


def measure_cell(other: subprocess.Popen, ways: dict[str, Any], cell: str, rounds: int) -> dict[str, list[Row]]:
    """Way -> a row per round, after as many rounds as it takes to use all memory once."""
    num_bytes, num_offered = CELLS[cell]
    source = np.random.default_rng(0).integers(0, 256, num_bytes, np.uint8)
    others = {name: HandingOver(other, name, way, num_offered) for name, way in ways.items()}
    turns = {MEMORY: Copying(num_bytes, num_offered), **others}
    rows: dict[str, list[Row]] = {name: [] for name in turns}
    num_warm_up = -(-num_offered // BURST)
    for number in range(num_warm_up + rounds):
        for name in random.sample(list(turns), len(turns)):
            row = burst(turns[name], source, number * BURST)
            if number >= num_warm_up:
                rows[name].append(row)
    for turn in others.values():
        turn.close((num_warm_up + rounds) * BURST)
    print(f"  {cell} done", file=sys.stderr)
    return rows


def measure(rounds: int) -> dict[str, dict[str, list[Row]]]:
    """Cell -> way -> rows."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, consumer(Path(folder)) as other:
        ways = open_ways(Path(folder))
        rows = {cell: measure_cell(other, ways, cell, rounds) for cell in CELLS}
        for way in ways.values():
            way.close()
    return rows


def summarise(rows: dict[str, dict[str, list[Row]]]) -> dict[str, Any]:
    """Medians, and ratios within a round: to copying in memory, and of the file's time to each way's."""
    summary: dict[str, Any] = {}
    for cell, of_cell in rows.items():
        summary[cell] = {}
        for name, of_way in of_cell.items():
            entry: dict[str, Any] = {
                f"{figure}_s": statistics.median(row[figure] for row in of_way) for figure in of_way[0]
            }
            for figure in ("hand_over", "checked"):
                ours, memory, files = (
                    [row[figure] for row in of_cell[other]] for other in (name, MEMORY, "safetensors")
                )
                entry[f"{figure}_of_memcpy"] = median_ratio(memory, ours)
                entry[f"{figure}_times_safetensors"] = median_ratio(files, ours)
            summary[cell][name] = entry
    return summary


def main(argv: list[str]) -> None:
    """Measure and write one result file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks ec_transfer", description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--pause-pid-file", type=Path, help="stop the process it names while measuring")
    parser.add_argument("--name", default="ec-transfer", help="end of the result file's name")
    args = parser.parse_args(argv)
    described = machine.describe()
    machine.prefer(os.getpid())
    with machine.paused(args.pause_pid_file):
        rows = measure(args.rounds)
    summary = summarise(rows)
    print(json.dumps(summary, indent=1))
    path = RESULTS / f"{time.strftime('%Y-%m-%d')}-{args.name}.json"
    path.write_text(json.dumps({"machine": described, "rounds": args.rounds, "transfers": summary}, indent=1) + "\n")
    print(f"written: benchmarks/results/{path.name}")
