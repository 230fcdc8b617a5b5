"""What follows from paired measurements: means with intervals, comparisons, and whether the promises hold."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.epd.cells import Cell

FIXED = ("agg", "e-pd")
MOST_WORSE = 1.03
FIGURES = {"first_token_s": "first token", "end_s": "end"}

Pair = tuple[float, float]
Row = dict[str, Any]
Samples = NDArray[np.float64]
Statistic = Callable[[Samples], Samples]
"""Of samples [samples, values, ...], one number each."""


def interval(values: Sequence[float] | Sequence[Pair], statistic: Statistic) -> dict[str, float]:
    """A statistic with its 95 % interval from resampling the values."""
    array, rng = np.asarray(values, np.float64), np.random.default_rng(0)
    found = np.concatenate([statistic(array[rng.integers(0, len(array), (100, len(array)))]) for _ in range(20)])
    low, high = np.quantile(found, [0.025, 0.975])
    return {
        "value": float(statistic(array[None])[0]),
        "low": float(low),
        "high": float(high),
        "count": len(values),
    }


def mean(samples: Samples) -> Samples:
    """The mean of each sample."""
    return samples.mean(1)


def ratio_of_means(samples: Samples) -> Samples:
    """Mean of the first over mean of the second of each pair."""
    return samples[..., 0].sum(1) / samples[..., 1].sum(1)


def ratio_of_p95(samples: Samples) -> Samples:
    """95th percentile of the first over that of the second of each pair."""
    return np.quantile(samples[..., 0], 0.95, axis=1) / np.quantile(samples[..., 1], 0.95, axis=1)


def ratio_of_medians(samples: Samples) -> Samples:
    """Median of the first over that of the second of each pair."""
    return np.median(samples[..., 0], axis=1) / np.median(samples[..., 1], axis=1)


def paired(rows: Sequence[Row], ours: str, theirs: str, figure: str) -> list[Pair]:
    """Figures of requests that both answered, seed by seed."""
    pairs = []
    for row in rows:
        if row["topology"] == ours:
            other = next(one for one in rows if one["topology"] == theirs and one["seed"] == row["seed"])
            both = zip(row["answers"], other["answers"], strict=True)
            pairs += [(a[figure], b[figure]) for a, b in both if not a["error"] and not b["error"]]
    return pairs


def compare(rows: Sequence[Row], ours: str, theirs: str, figure: str) -> dict[str, float] | None:
    """Mean of ours over mean of theirs; None when no request was answered by both."""
    pairs = paired(rows, ours, theirs, figure)
    return interval(pairs, ratio_of_means) if pairs else None


def summarise(rows: Sequence[Row], cell: Cell, topologies: Sequence[str]) -> Row:
    """All about one cell: means, auto against agg and the best fixed topology, and verdicts in words."""
    entry: Row = {"cell": str(cell), "shape": vars(cell), "means": {}, "errors": {}, "auto": {}, "used": {}}
    for topology in topologies:
        here = [row for row in rows if row["topology"] == topology]
        answers = [one for row in here for one in row["answers"]]
        good = [one for one in answers if not one["error"]]
        entry["errors"][topology] = len(answers) - len(good)
        entry["used"][topology] = _mean_shares([row["used"] for row in here if row.get("used")])
        for figure in FIGURES:
            values = [one[figure] for one in good]
            entry["means"].setdefault(figure, {})[topology] = interval(values, mean) if values else None
    for figure, means in entry["means"].items():
        fixed = {one: means[one]["value"] for one in topologies if one in FIXED and means[one] is not None}
        if fixed and means.get("auto") is not None:
            best = min(fixed, key=fixed.__getitem__)
            against = compare(rows, "auto", best, figure)
            entry["auto"][figure] = {"best fixed": best, "against best": against}
            entry["auto"][figure]["against agg"] = compare(rows, "auto", "agg", figure) if "agg" in fixed else None
    entry["verdicts"] = verdicts(entry, cell)
    return entry


def verdicts(entry: Row, cell: Cell) -> list[str]:
    """Which promises this cell keeps, breaks or leaves open, and what a split that loses is bound by."""
    found = []
    for figure, auto in entry["auto"].items():
        name, best = FIGURES[figure], auto["against best"]
        if best is not None:
            promise = f"{name}: auto at most 3 % worse than {auto['best fixed']}"
            found.append(f"{promise}: {_judged(best, MOST_WORSE)}")
        if figure == "first_token_s" and cell.images >= 2 and auto["against agg"] is not None:
            found.append(f"{name}: auto earlier than agg: {_judged(auto['against agg'], 1.0)}")
    means = entry["means"]["first_token_s"]
    if means.get("agg") and means.get("e-pd") and means["e-pd"]["low"] > means["agg"]["high"]:
        found.append(f"e-pd is later than agg: {binding(entry['used'].get('e-pd', {}))}")
    return found


def binding(shares: dict[str, float]) -> str:
    """Which process of a split is at its limit, in words."""
    workers = {name: share for name, share in shares.items() if name != "gateway"}
    if not workers:
        return "what binds it was not measured"
    most = max(workers, key=workers.__getitem__)
    others = ", ".join(f"{name} {share:.0%}" for name, share in workers.items() if name != most)
    return f"its {most} is busy {workers[most]:.0%} of the time, others less ({others})"


def tally(summary: Sequence[Row]) -> dict[str, dict[str, int]]:
    """How often each promise is kept, broken or open."""
    counts: dict[str, dict[str, int]] = {}
    for entry in summary:
        for line in entry["verdicts"]:
            promise, _, judged = line.rpartition(": ")
            before, worse, _ = promise.partition(" worse than ")
            promise = f"{before}{worse}the best fixed" if worse else promise
            outcome = judged.partition(" ")[0]
            if outcome in ("kept", "broken", "open"):
                of_promise = counts.setdefault(promise, {"kept": 0, "broken": 0, "open": 0})
                of_promise[outcome] += 1
    return counts


def _judged(ratio: dict[str, float], limit: float) -> str:
    """By the interval: kept when all of it is within the limit, broken when none is, else open."""
    outcome = "kept" if ratio["high"] <= limit else "broken" if ratio["low"] > limit else "open"
    return f"{outcome} ({ratio['value']:.3f}, {ratio['low']:.3f} to {ratio['high']:.3f})"


def _mean_shares(used: Sequence[dict[str, float]]) -> dict[str, float]:
    names = {name for shares in used for name in shares}
    return {name: round(statistics.fmean(shares.get(name, 0.0) for shares in used), 4) for name in sorted(names)}
