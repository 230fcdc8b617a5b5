"""Grids and runs for tests."""

import random

from chiasm.bench.grid.cells import Cell, Kind
from chiasm.bench.grid.journal import Answer, Run
from chiasm.bench.grid.spec import GridSpec, Topology

TOPOLOGIES = tuple(Topology(name=name, url="http://127.0.0.1:9") for name in ("agg", "e-pd", "auto"))
GRID = GridSpec(topologies=TOPOLOGIES, judged="auto", loads=(0.3, 0.6, 0.85), outputs=(16, 128, 512))
CELL = Cell(kind=Kind(images=2, tokens=64, output=16), load=0.6)
USED = {"gateway": 0.3, "encoder": 0.97, "prefill and decode": 0.2}


def run(topology, seed, waits_s, *, cell=CELL, verdict="valid", outcome="finished"):
    """A run whose answers took so long to the first token, and 0.3 s more to the end."""
    answers = tuple(
        Answer(0.1 * number, wait, wait + 0.3, 0.02, outcome)
        if outcome == "finished"
        else Answer(0.1 * number, None, None, None, outcome)
        for number, wait in enumerate(waits_s)
    )
    return Run(
        cell=cell,
        seed=seed,
        topology=topology,
        rate_per_s=2.0,
        verdict=verdict,
        problems=(),
        lag_p99_ms=0.2,
        used=USED if topology == "e-pd" else {},
        answers=answers,
    )


def runs(agg, split, auto, *, seeds=3, cell=CELL):
    """Answers around a mean for each topology, the same noise in all: paired."""
    found = []
    for seed in range(seeds):
        noise = [random.Random(f"{seed} {number}").gauss(0, 0.01) for number in range(40)]
        for topology, mean in (("agg", agg), ("e-pd", split), ("auto", auto)):
            found.append(run(topology, seed, [mean + one for one in noise], cell=cell))
    return found
