"""What handing an embedding from one vLLM server to another costs: Chiasm's EC connector against vLLM's example.

The same tensors in one run, ways taking turns in random order; see `benchmarks.vllm_ec_turns` for what a turn does.
"""

import argparse
import json
import statistics
import subprocess
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.ratios import median_ratio

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
SIZES = {"256 KB": 2**18, "1 MB": 2**20, "4 MB": 2**22, "16 MB": 2**24}
BASELINE = "example"
FIGURES = ("publish_ms", "take_ms", "hand_over_ms", "cpu_ms")


def measure(python: Path, num_turns: int, sizes: list[int]) -> list[dict[str, Any]]:
    """The rows of a run in vLLM's environment."""
    done = subprocess.run(
        [python, "-m", "benchmarks.vllm_ec_turns", str(num_turns), *map(str, sizes)],
        cwd=ROOT,
        env={"PYTHONPATH": "src", "PATH": "/usr/bin:/bin", "VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=1800,
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of every way and size, and the example's time over each way's, turn by turn."""
    cells: dict[str, Any] = {}
    for label, num_bytes in SIZES.items():
        of_size = [row for row in rows if row["bytes"] == num_bytes]
        base = [row["hand_over_ms"] for row in of_size if row["way"] == BASELINE]
        for way in sorted({row["way"] for row in of_size}):
            mine = [row for row in of_size if row["way"] == way]
            cell = {figure: round(statistics.median(row[figure] for row in mine), 4) for figure in FIGURES}
            cell["mb_per_s"] = round(num_bytes / 1e3 / cell["hand_over_ms"], 1)
            cell["times_faster_than_example"] = median_ratio(base, [row["hand_over_ms"] for row in mine])
            cells[f"{label}, {way}"] = cell
    return cells


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks vllm_ec", description=__doc__)
    parser.add_argument("--python", type=Path, required=True, help="interpreter of an environment that has vLLM")
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--out", type=Path, default=RESULTS / "vllm" / "ec.json")
    options = parser.parse_args(arguments)
    about = machine.describe()
    cells = summary(measure(options.python, options.turns, list(SIZES.values())))
    options.out.write_text(json.dumps({"machine": about, "turns": options.turns, "cells": cells}, indent=1) + "\n")
    for name, cell in cells.items():
        ratio = cell["times_faster_than_example"]["median"]
        print(
            f"{name:22} {cell['hand_over_ms']:9.3f} ms {cell['mb_per_s']:8.1f} MB/s {ratio:6.2f}x the example's speed"
        )
