"""The simulator against a grid that was measured: calibrated on micro-runs alone, it predicts every cell.

What is tolerated stands in `simulator_grid.json`, written before the first run. `chiasm bench grid` leaves
`runs.jsonl`; `chiasm profile` makes the calibration. Requests come in the simulation at the times at which they came.
"""

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.machine import describe
from chiasm.bench.grid.cells import Cell
from chiasm.bench.grid.journal import Begin, Line, Run, whole_runs
from chiasm.bench.grid.results import against
from chiasm.bench.grid.spec import GridSpec
from chiasm.simulator.calibration import Calibration, load_calibration
from chiasm.simulator.cluster import Cluster
from chiasm.simulator.fleets import fleet_named
from chiasm.simulator.record import Record
from chiasm.simulator.run import simulate
from chiasm.simulator.traffic import Picture, Request, RequestClass, Traffic

TOLERANCES = Path(__file__).with_suffix(".json")
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
            "best": {figure: best(figure, kept, told, own) for figure in ("ttft", "e2el")} if len(kept) > 1 else {},
        }


def _frozen(cell: Cell) -> bytes:
    return msgspec.json.encode(cell)


def errors(found: Figures, told: Figures) -> dict[str, float]:
    """Relative to what was measured."""
    return {name: told[name] / found[name] - 1.0 for name in FIGURES if found.get(name) and name in told}


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
        mean = float(np.mean(values)) if values else math.nan
        within = float(np.mean([value <= limit for value in values])) if values else math.nan
        verdict[name] = {"mean_error": mean, "tolerance": limit, "kept": bool(mean <= limit), "cells_within": within}
    choices = [choice for one in cells for choice in one["best"].values()]
    decided = [one for one in choices if one["is_decided"]]
    right = float(np.mean([one["measured"] == one["predicted"] for one in decided])) if decided else math.nan
    regret = [one["regret"] for one in choices if not one["is_decided"]]
    wanted = rules["best_topology"]
    verdict["best_topology"] = {
        "decided": len(decided),
        "right_share": right,
        "kept": bool(right >= wanted["right_share"]),
        "undecided": len(regret),
        "mean_regret": float(np.mean(regret)) if regret else 0.0,
        "most_regret": max(regret, default=0.0),
        "regret_kept": max(regret, default=0.0) <= wanted["regret_elsewhere"],
    }
    return verdict


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks simulator_grid", description=__doc__)
    parser.add_argument("runs", type=Path, help="runs.jsonl of a grid")
    parser.add_argument("--calibration", type=Path, required=True, help="of `chiasm profile`")
    parser.add_argument("--apart", type=Path, help="the same of a server with encoders apart; default: the first")
    parser.add_argument("--fleet", action="append", default=[], help="NAME=FLEET of a topology, as in e-pd=e-pd:1,2")
    parser.add_argument("--output", type=Path, help="write the comparison as JSON")
    options = parser.parse_args(arguments)
    spec, runs = read_runs(options.runs)
    named = FLEETS | dict(one.split("=", 1) for one in options.fleet)
    fleets = {name: fleet_named(named[name]) for name in spec.names if name in named}
    whole = load_calibration(options.calibration)
    apart = load_calibration(options.apart) if options.apart is not None else whole
    costs = {name: apart if name.startswith("e-") else whole for name in fleets}
    cells = []
    for one in compared(spec, runs, fleets, costs):
        cells.append(one)
        print(
            one["cell"], {name: f"{found['mean_ttft']:+.0%} TTFT" for name, found in one["errors"].items()}, flush=True
        )
    rules = json.loads(TOLERANCES.read_bytes())
    found = {"benchmark": "simulator_grid", "machine": describe(), "rules": rules, "verdict": judged(cells, rules)}
    print(json.dumps(found["verdict"], indent=1))
    if options.output is not None:
        options.output.write_text(json.dumps(found | {"cells": cells}, indent=1) + "\n")
