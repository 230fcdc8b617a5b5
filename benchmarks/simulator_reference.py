"""The simulator against published numbers: some are fitted, the others predicted and judged.

Which are which, what is assumed and what is tolerated stands in
`simulator_reference.json`, written before the first fit.
"""

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe
from benchmarks.simulator_reference_mixed import text_reduction
from benchmarks.simulator_reference_model import START, Model, Parameters, Vector, as_log, fit

REFERENCE = Path(__file__).with_suffix(".json")
LIGHT = (5, 128)
LENGTHS = (128, 256, 512, 1024, 2048)
MIN_KV_SHARE = 0.7
Record = Mapping[str, Any]


def load_reference() -> dict[str, Any]:
    """The published numbers, with what each is for."""
    loaded: dict[str, Any] = json.loads(REFERENCE.read_bytes())
    return loaded


def fitted(reference: Mapping[str, Any], generation_ms: float, start: Parameters) -> dict[str, float]:
    """Parameters of the fit, of the records that are for it alone."""
    targets = of_role(reference, "fitted")

    def residuals(found: Parameters) -> Vector:
        model = Model(found, reference["assumptions"], generation_ms)
        return np.array([as_log(one, model.value(one)) - as_log(one, one["value"]) for one in targets])

    return fit(residuals, start)


def of_role(reference: Mapping[str, Any], role: str) -> list[Record]:
    """Records of one role."""
    return [one for one in reference["records"] if one["role"] == role]


def predicted(records: Sequence[Record], model: Model) -> list[dict[str, Any]]:
    """Each with what the simulation says of it."""
    names = ("id", "topology", "metric", "cell", "unit")
    return [
        {name: one[name] for name in names} | {"published": one["value"], "predicted": round(model.value(one), 3)}
        for one in records
    ]


def break_even(model: Model) -> tuple[float, float] | None:
    """Lengths of answers between which colocation's gain crosses zero, among those published; None where it never does.

    Below the first means that it is never ahead: then both are the first.
    """
    gains = []
    for length in LENGTHS:
        cell = (*LIGHT, length)
        gains.append(1.0 - model.e2el_s("colocated", cell) / model.e2el_s("aggregated", cell))
    if gains[0] <= 0:
        return float(LENGTHS[0]), float(LENGTHS[0])
    for index in range(1, len(LENGTHS)):
        if gains[index] <= 0:
            return float(LENGTHS[index - 1]), float(LENGTHS[index])
    return None


def kv_shares(assumptions: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What colocation leaves of an engine's room for contexts, by model and memory; None: the weights do not fit."""
    rows = []
    whole, beside = (assumptions["memory_share"][name] for name in ("aggregated", "colocated"))
    for memory_gb in assumptions["memory_gb"]:
        for name, weights_gb in assumptions["weights_gb"].items():
            room, left = whole * memory_gb - weights_gb, beside * memory_gb - weights_gb
            share = round(max(left, 0.0) / room, 3) if room > 0 else None
            is_rejected = share is None or share < MIN_KV_SHARE
            rows.append({"model": name, "memory_gb": memory_gb, "kv_share": share, "colocation_rejected": is_rejected})
    return rows


def judged(rows: Sequence[Mapping[str, Any]], tolerances: Mapping[str, Any]) -> dict[str, Any]:
    """Held-out gains against the tolerances."""
    errors = [abs(one["predicted"] - one["published"]) for one in rows]
    large = [one for one in rows if abs(one["published"]) >= tolerances["sign_from_points"]]
    wrong = [one["id"] for one in large if one["predicted"] * one["published"] <= 0]
    limits = tolerances["held_out_gain_points"]
    mean, most = float(np.mean(errors)), max(errors)
    return {
        "mean_points": round(mean, 2),
        "max_points": round(most, 2),
        "wrong_signs": wrong,
        "within": mean <= limits["mean"] and most <= limits["max"] and not wrong,
    }


def report(reference: Mapping[str, Any]) -> dict[str, Any]:
    """Fit, predict and judge; the middle cost of a generation is judged, the others widen intervals."""
    assumptions, tolerances = reference["assumptions"], reference["tolerances"]
    variants, start = [], START
    for generation_ms in assumptions["decode_per_generation_ms"]:
        print(f"Fitting with {generation_ms} ms of a decode step for each generation ...", flush=True)
        start = fitted(reference, generation_ms, start)
        model = Model(start, assumptions, generation_ms)
        rows = {role: predicted(of_role(reference, role), model) for role in ("fitted", "held_out")}
        rows["shown"] = predicted([one for one in of_role(reference, "shown") if "cell" in one], model)
        verdict = judged(rows["held_out"], tolerances)
        print(f"  held out: {verdict}", flush=True)
        variants.append(
            {
                "generation_ms": generation_ms,
                "parameters": {name: round(value, 5) for name, value in start.items()},
                **rows,
                "verdict": verdict,
                "break_even": break_even(model),
            }
        )
    print("Fitting mixed traffic at several loads ...", flush=True)
    found: dict[str, Any] = {"variants": variants, "mixed": text_reduction(reference), "kv": kv_shares(assumptions)}
    return found | {"tolerances": tolerances, "verdicts": verdicts(found, reference)}


def verdicts(found: Mapping[str, Any], reference: Mapping[str, Any]) -> dict[str, Any]:
    """Each tolerance, kept or not. The middle variant is judged; all of them make the interval of the break-even."""
    variants = found["variants"]
    judged_one = variants[len(variants) // 2]
    published = next(one["value"] for one in of_role(reference, "interval") if one["metric"] == "break_even_osl")
    ends = [one["break_even"] or (LENGTHS[-1], math.inf) for one in variants]
    low, high = min(one[0] for one in ends), max(one[1] for one in ends)
    worst = max(abs(math.expm1(_log_error(one))) for one in judged_one["fitted"])
    rejected = {row["model"] for row in found["kv"] if row["colocation_rejected"]}
    return {
        "fitted": {"max_pct": round(100 * worst, 1), "within": 100 * worst <= reference["tolerances"]["fitted_pct"]},
        "held_out": judged_one["verdict"],
        "held_out_ratio_error_pct": [
            round(100 * abs(math.expm1(_log_error(one))), 1) for one in judged_one["held_out"]
        ],
        "break_even": {
            "interval": [low, high if math.isfinite(high) else None],
            "published": published,
            "within": low < published[1] and high > published[0],
        },
        "text_ttft": {name: found["mixed"][name] for name in ("interval_pct", "published_pct", "within")},
        "fit_step": {"rejected": sorted(rejected), "within": rejected == {"Qwen3.5-27B"}},
    }


def _log_error(row: Mapping[str, Any]) -> float:
    return as_log(row, row["predicted"]) - as_log(row, row["published"])


def show(found: Mapping[str, Any]) -> None:
    """Print it for people."""
    for variant in found["variants"]:
        print(f"\n{variant['generation_ms']} ms for each generation: {variant['parameters']}")
        for role in ("fitted", "held_out", "shown"):
            for one in variant[role]:
                cell = "x".join(str(part) for part in one["cell"].values())
                values = f"{one['published']:9.2f} {one['predicted']:9.2f} {one['unit']}"
                print(f"{role:9} {one['topology']:14} {one['metric']:30} {cell:12} {values}")
        print(f"held out: {variant['verdict']}; break-even {variant['break_even']}")
    print(f"\ntext in mixed traffic: {found['mixed']}")
    for name, verdict in found["verdicts"].items():
        print(f"{name}: {verdict}")
    for row in found["kv"]:
        is_rejected = "rejected" if row["colocation_rejected"] else "fits"
        print(f"{row['model']:12} {row['memory_gb']:4} GB: {row['kv_share']} of the KV room left: {is_rejected}")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks simulator_reference", description=__doc__)
    parser.add_argument("--output", type=Path, help="write the result as JSON")
    parser.add_argument("--list", action="store_true", help="only say which numbers are fitted and which held out")
    options = parser.parse_args(arguments)
    reference = load_reference()
    for one in reference["records"]:
        print(f"{one['role']:12} {one['id']} {one['topology'] or '':14} {one['metric']}: {one['value']} {one['unit']}")
    if options.list:
        return
    found = report(reference)
    show(found)
    if options.output is not None:
        whole = {"benchmark": "simulator_reference", "machine": describe(), **found}
        options.output.write_text(json.dumps(whole, indent=1) + "\n")
