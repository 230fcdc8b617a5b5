"""The simulator against a grid that was measured: calibrated on micro-runs alone, it predicts every cell.

What is tolerated stands in `simulator_grid.json`, written before the first run. Cells that had been seen when the model
was last changed stand in `simulator_grid_seen.json`, and are judged apart from the others. Two steps, which may be one
command; the first one needs a machine that has nothing else to do:

    python -m benchmarks simulator_grid --grid benchmarks/grids/two_workers.toml --calibrate costs.json
    python -m benchmarks simulator_grid runs.jsonl --calibration costs.json

The first runs micro-measurements alone (`simulator_grid_calibration`). The second predicts what `chiasm bench grid` has
left in `runs.jsonl`: requests come in the simulation at the times at which they came. A calibration on a machine that
was not quiet is written, and ends with what was wrong and exit status 1.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.machine import describe
from benchmarks.simulator_grid_calibration import combined, measure
from chiasm.bench.grid.cells import Cell
from chiasm.bench.grid.journal import Begin, Line, Run, whole_runs
from chiasm.bench.grid.results import against
from chiasm.bench.grid.spec import GridSpec, read_grid
from chiasm.simulator.calibration import Calibration, load_calibration, save_calibration
from chiasm.simulator.cluster import Cluster, on_one_host
from chiasm.simulator.fleets import fleet_named
from chiasm.simulator.record import Record
from chiasm.simulator.run import simulate
from chiasm.simulator.traffic import Picture, Request, RequestClass, Traffic

TOLERANCES = Path(__file__).with_suffix(".json")
SEEN = Path(__file__).with_name("simulator_grid_seen.json")
FLEETS = {"agg": "agg:2", "auto": "auto:2", "e-pd": "e-pd:1,1", "e-p-d": "e-p-d:1,1,1"}
TEMPLATE_TOKENS = 8
"""Of a prompt, besides its text and pictures."""
FIGURES = ("mean_ttft", "mean_tpot", "mean_e2el", "p90_ttft")
Figures = Mapping[str, float]


def read_runs(path: Path) -> tuple[GridSpec, list[Run]]:
    """What was measured."""
    decoder = msgspec.json.Decoder(Line)
    lines = [decoder.decode(line) for line in path.read_bytes().splitlines() if line.strip()]
    (begin,) = (one for one in lines if isinstance(one, Begin))
    return begin.grid, whole_runs([one for one in lines if isinstance(one, Run)], set(begin.grid.names))


def measured(runs: Sequence[Run]) -> Figures | None:
    """Figures of a cell on one topology; None where it did not keep up or nothing ended well."""
    if any(run.verdict == "unstable" for run in runs):
        return None
    answers = [answer for run in runs for answer in run.answers if answer.ttft_s is not None]
    first = [answer.ttft_s for answer in answers if answer.ttft_s is not None]
    whole = [answer.e2el_s for answer in answers if answer.e2el_s is not None]
    later = [answer.tpot_s for answer in answers if answer.tpot_s is not None]
    return figures(first, whole, later) if first and whole else None


def figures(ttft_s: Sequence[float], e2el_s: Sequence[float], tpot_s: Sequence[float]) -> Figures:
    """Means, and the 90th percentile of the time to the first token."""
    found = {
        "mean_ttft": float(np.mean(ttft_s)),
        "mean_e2el": float(np.mean(e2el_s)),
        "p90_ttft": float(np.percentile(ttft_s, 90)),
    }
    return found | ({"mean_tpot": float(np.mean(tpot_s))} if len(tpot_s) else {})


def predicted(cluster: Cluster, runs: Sequence[Run], spec: GridSpec, costs: Calibration) -> Figures:
    """The same figures, simulated: each run's requests at the times at which they were due."""
    records = [_simulated(cluster, run, spec, costs) for run in runs]
    tpot_s = np.concatenate([one.tpot_s for one in records])
    return figures(
        np.concatenate([one.ttft_s for one in records]).tolist(),
        np.concatenate([one.e2el_s for one in records]).tolist(),
        tpot_s[~np.isnan(tpot_s)].tolist(),
    )


def _simulated(cluster: Cluster, run: Run, spec: GridSpec, costs: Calibration) -> Record:
    kind = run.cell.kind
    num_pixels, text_tokens = kind.tokens * spec.pixels_per_token, spec.text_tokens + TEMPLATE_TOKENS
    each = RequestClass(
        num_images=kind.images,
        num_pixels=num_pixels,
        visual_tokens=kind.tokens,
        text_tokens=text_tokens,
        output_tokens=kind.output,
    )
    zero_s = min(answer.at_s for answer in run.answers)
    requests = [
        Request(
            number=number,
            at_s=answer.at_s - zero_s,
            class_name="all",
            text_tokens=text_tokens,
            output_tokens=kind.output,
            pictures=tuple(Picture(f"{number}.{place}", num_pixels, kind.tokens) for place in range(kind.images)),
        )
        for number, answer in enumerate(sorted(run.answers, key=lambda one: one.at_s))
    ]
    traffic = Traffic(classes=(each,), rate_per_s=run.rate_per_s, num_requests=len(requests))
    return simulate(cluster, traffic, costs, requests=requests).record


def compared(
    spec: GridSpec, runs: Sequence[Run], fleets: Mapping[str, Cluster], costs: Mapping[str, Calibration]
) -> Iterator[dict[str, Any]]:
    """Of each cell: what was measured and predicted on each topology, and which was best."""
    for cell in dict.fromkeys(map(_frozen, (run.cell for run in runs))):
        own = [run for run in runs if _frozen(run.cell) == cell and run.answers]
        by_name = {name: [run for run in own if run.topology == name] for name in spec.names if name in fleets}
        found = {name: measured(some) for name, some in by_name.items() if some}
        kept = {name: one for name, one in found.items() if one is not None}
        told = {name: predicted(fleets[name], by_name[name], spec, costs[name]) for name in kept}
        yield {
            "cell": str(own[0].cell),
            "load": own[0].cell.load,
            "measured": kept,
            "predicted": told,
            "errors": {name: errors(kept[name], told[name]) for name in kept},
            "noise": {name: noise(fleets[name], by_name[name], spec, costs[name]) for name in kept},
            "best": {figure: best(figure, kept, told, own) for figure in ("ttft", "e2el")} if len(kept) > 1 else {},
        }


def _frozen(cell: Cell) -> bytes:
    return msgspec.json.encode(cell)


def errors(found: Figures, told: Figures) -> dict[str, float]:
    """Relative to what was measured."""
    return {name: told[name] / found[name] - 1.0 for name in FIGURES if found.get(name) and name in told}


def noise(cluster: Cluster, runs: Sequence[Run], spec: GridSpec, costs: Calibration) -> dict[str, float]:
    """Standard errors of these errors, from how they differ between a cell's runs; no model is nearer than that."""
    each = [errors(found, predicted(cluster, [run], spec, costs)) for run in runs if (found := measured([run]))]
    return {
        name: float(np.std(values, ddof=1)) / len(values) ** 0.5
        for name in FIGURES
        if len(values := [one[name] for one in each if name in one]) > 1
    }


def best(figure: str, found: Mapping[str, Figures], told: Mapping[str, Figures], runs: Sequence[Run]) -> dict[str, Any]:
    """Which topology is best as measured and as predicted, whether the measurement decides, and what it would cost."""
    name = f"mean_{figure}"
    really, said = (min(one, key=lambda key: one[key][name]) for one in (found, told))
    ratios = [against(runs, really, other, figure) for other in found if other != really]  # type: ignore[arg-type]
    return {
        "measured": really,
        "predicted": said,
        "is_decided": all(ratio is not None and ratio.high < 1.0 for ratio in ratios),
        "regret": found[said][name] / found[really][name] - 1.0,
    }


def judged(cells: Sequence[Mapping[str, Any]], rules: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict, by the rules that were written down."""
    low = [one for one in cells if one["load"] < rules["judged_below_load"]]
    verdict: dict[str, Any] = {}
    for name in FIGURES:
        values = [abs(found[name]) for one in low for found in one["errors"].values() if name in found]
        limit = rules["tolerances"][name]
        mean, within = _mean(values), _mean([value <= limit for value in values])
        kept = None if mean is None else mean <= limit
        verdict[name] = {
            "mean_error": mean,
            "tolerance": limit,
            "kept": kept,
            "cells_within": within,
            **_beside_noise(low, name),
        }
    choices = [choice for one in cells for choice in one["best"].values()]
    decided = [one for one in choices if one["is_decided"]]
    right = _mean([one["measured"] == one["predicted"] for one in decided])
    regret = [one["regret"] for one in choices if not one["is_decided"]]
    wanted = rules["best_topology"]
    verdict["best_topology"] = {
        "decided": len(decided),
        "right_share": right,
        "kept": None if right is None else right >= wanted["right_share"],
        "undecided": len(regret),
        "mean_regret": _mean(regret),
        "most_regret": max(regret, default=0.0),
        "regret_kept": max(regret, default=0.0) <= wanted["regret_elsewhere"],
    }
    return verdict


def _beside_noise(cells: Sequence[Mapping[str, Any]], name: str) -> dict[str, float | None]:
    """How much of a figure's error the measurement's own explains; the verdict does not hang on it."""
    both = [
        (one["errors"][key][name], unsure[name])
        for one in cells
        for key, unsure in one["noise"].items()
        if name in unsure and name in one["errors"][key]
    ]
    unsure = _mean([noise for _, noise in both])
    squares = _mean([error**2 - noise**2 for error, noise in both])
    return {
        "standard_error": unsure,
        "of_noise_alone": None if unsure is None else unsure * (2.0 / math.pi) ** 0.5,
        "beyond_noise": None if squares is None else max(squares, 0.0) ** 0.5,
    }


def _mean(values: Sequence[float]) -> float | None:
    """None where there is nothing to judge."""
    return float(np.mean(values)) if values else None


def split(spec: GridSpec, cells: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Cells that were seen before the model was last changed, and those that were not."""
    seen = set(json.loads(SEEN.read_bytes()).get(spec.title, ()))
    return {
        "seen": [one for one in cells if one["cell"] in seen],
        "unseen": [one for one in cells if one["cell"] not in seen],
    }


def fleets_of(spec: GridSpec, changed: Sequence[str]) -> dict[str, Cluster]:
    """A grid's topologies, all on one host; `changed` are NAME=FLEET."""
    named = FLEETS | dict(one.split("=", 1) for one in changed)
    return {name: on_one_host(fleet_named(named[name])) for name in spec.names if name in named}


def calibrate(spec: GridSpec, path: Path, num_rounds: int) -> list[str]:
    """Measure, and write the calibration and beside it how well it fits; returns why not to rely on it, if at all."""
    found = measure(spec, num_rounds)
    save_calibration(combined(found.profiles), path)
    notes = {"machine": describe(), "not_quiet": found.complaints, "looks": found.looks, "profiles": found.profiles}
    path.with_suffix(".profiles.json").write_bytes(msgspec.json.format(msgspec.json.encode(notes)) + b"\n")
    print(f"Written to {path}")
    return found.complaints


def hold(spec: GridSpec, runs: Sequence[Run], costs: Calibration, changed: Sequence[str]) -> dict[str, Any]:
    """Predict, cell by cell, and judge."""
    fleets = fleets_of(spec, changed)
    cells = []
    for one in compared(spec, runs, fleets, dict.fromkeys(fleets, costs)):
        cells.append(one)
        kind = next(name for name, some in split(spec, [one]).items() if some)
        errors_of = {name: f"{found['mean_ttft']:+.0%} TTFT" for name, found in one["errors"].items()}
        print(f"{kind:6}", one["cell"], errors_of, flush=True)
    rules = json.loads(TOLERANCES.read_bytes())
    verdicts = {name: judged(some, rules) | {"cells": len(some)} for name, some in split(spec, cells).items() if some}
    print(json.dumps(verdicts, indent=1))
    return {"benchmark": "simulator_grid", "machine": describe(), "rules": rules, "verdicts": verdicts, "cells": cells}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks simulator_grid", description=__doc__)
    parser.add_argument("runs", type=Path, nargs="?", help="runs.jsonl of a grid; none: calibrate only")
    parser.add_argument("--grid", type=Path, help="the grid's file, to calibrate for one that was not measured yet")
    costs = parser.add_mutually_exclusive_group(required=True)
    costs.add_argument("--calibrate", type=Path, help="start the grid's servers, measure, and write a calibration here")
    costs.add_argument("--calibration", type=Path, help="one that was written so, or by `chiasm profile`")
    parser.add_argument("--repeats", type=int, default=5, help="rounds over all servers, to calibrate")
    parser.add_argument("--fleet", action="append", default=[], help="NAME=FLEET of a topology, as in e-pd=e-pd:1,2")
    parser.add_argument("--output", type=Path, help="write the comparison as JSON")
    options = parser.parse_args(arguments)
    if options.runs is None and (options.grid is None or options.calibrate is None):
        parser.error("without a grid's runs, --grid and --calibrate are needed")
    spec, runs = (read_grid(options.grid), []) if options.runs is None else read_runs(options.runs)
    if options.calibrate is not None:
        not_quiet = calibrate(spec, options.calibrate, options.repeats)
        if not_quiet:
            sys.exit("\n".join(["The machine was not quiet: calibrate again.", *not_quiet]))
    if runs:
        found = hold(spec, runs, load_calibration(options.calibrate or options.calibration), options.fleet)
        if options.output is not None:
            options.output.write_text(json.dumps(found, indent=1) + "\n")
