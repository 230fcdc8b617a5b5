"""Whether the judged topology keeps what is promised of it, and what a split that loses is bound by."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from chiasm.bench.grid.cells import Cell
from chiasm.bench.grid.journal import Run
from chiasm.bench.grid.results import FIGURES, SHORT_NAMES, CellResult, Figure, TopologyResult, against
from chiasm.bench.grid.spec import GridSpec
from chiasm.bench.grid.usage import GATEWAY
from chiasm.bench.statistics.intervals import Interval

Outcome = Literal["kept", "open", "broken"]


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """A promise in one cell. By the interval of the ratio: kept when all of it is within the limit, broken when none
    is, else open. `ratio` is None where one of the two did not keep up, which decides. It is of requests that both
    answered, so that who failed more has not kept it.
    """

    promise: str
    outcome: Outcome
    cell: Cell
    other: str
    ratio: Interval | None


def judgements(spec: GridSpec, result: CellResult, runs: Sequence[Run]) -> list[Judgement]:
    """Of the judged topology in one cell; none where no topology is judged, or the client was the limit."""
    ours = result.topologies.get(spec.judged or "")
    if spec.judged is None or ours is None or ours.verdict == "invalid":
        return []
    found = []
    for figure in FIGURES:
        best = _best(spec, result, figure)
        if best is not None:
            promise = f"{SHORT_NAMES[figure]} of {spec.judged} at most {spec.most_worse:g} x the best of the others"
            found.append(_judged(promise, spec.judged, best, spec.most_worse, result, runs, figure))
    is_clean = result.topologies[spec.baseline].verdict != "invalid"
    if result.cell.kind.images >= 2 and is_clean:
        promise = f"TTFT of {spec.judged} below that of {spec.baseline}, from two pictures on"
        found.append(_judged(promise, spec.judged, spec.baseline, 1.0, result, runs, "ttft"))
    return found


def binding(result: TopologyResult) -> str | None:
    """Which process is the busiest, in words; None where that was not seen."""
    workers = {name: share for name, share in result.used.items() if name != GATEWAY}
    if not workers:
        return None
    most = max(workers, key=workers.__getitem__)
    others = ", ".join(f"{name} {share:.0%}" for name, share in result.used.items() if name != most)
    return f"its {most} is busy {workers[most]:.0%} of the time, {others}"


def losses(spec: GridSpec, found: Sequence[CellResult]) -> list[tuple[Cell, str, str]]:
    """Cells in which a topology that is neither baseline nor judged is later than the baseline beyond chance, or does
    not keep up where the baseline does; and what binds it.
    """
    lost = []
    for result in found:
        can_keep_up = result.topologies[spec.baseline].verdict != "unstable"
        for name, one in result.topologies.items():
            gain = one.gain.get("ttft")
            is_late = (one.verdict == "unstable" and can_keep_up) or (gain is not None and gain.high < 0)
            if name not in (spec.baseline, spec.judged) and is_late:
                lost.append((result.cell, name, binding(one) or "what binds it was not measured"))
    return lost


def _best(spec: GridSpec, result: CellResult, figure: Figure) -> str | None:
    means = {
        name: one.mean_s[figure].value
        for name, one in result.topologies.items()
        if name != spec.judged and one.verdict == "valid" and figure in one.mean_s
    }
    return min(means, key=means.__getitem__) if means else None


def _judged(
    promise: str, ours: str, theirs: str, limit: float, result: CellResult, runs: Sequence[Run], figure: Figure
) -> Judgement:
    verdicts = result.topologies[ours].verdict, result.topologies[theirs].verdict
    ratio = None if "unstable" in verdicts else against(runs, ours, theirs, figure)
    outcome: Outcome = "open"
    if ratio is not None:
        outcome = "kept" if ratio.high <= limit else "broken" if ratio.low > limit else "open"
        if outcome == "kept" and result.topologies[ours].share_failed > result.topologies[theirs].share_failed:
            outcome = "open"
    elif verdicts.count("unstable") == 1:
        outcome = "broken" if verdicts[0] == "unstable" else "kept"
    return Judgement(promise=promise, outcome=outcome, cell=result.cell, other=theirs, ratio=ratio)
