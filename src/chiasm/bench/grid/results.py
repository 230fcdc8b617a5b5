"""What a cell's runs come to: each topology's latencies, and its gain over the baseline."""

import statistics
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from chiasm.bench.grid.cells import Cell, all_cells
from chiasm.bench.grid.journal import Answer, Journal, Run
from chiasm.bench.grid.spec import GridSpec
from chiasm.bench.record import FINISHED
from chiasm.bench.statistics.intervals import Interval
from chiasm.bench.statistics.pairs import mean_interval, ratio_interval
from chiasm.bench.summary import Verdict

Figure = Literal["ttft", "e2el"]
FIGURES: tuple[Figure, ...] = ("ttft", "e2el")
LONG_NAMES: dict[Figure, str] = {"ttft": "time to first token", "e2el": "end-to-end latency"}
SHORT_NAMES: dict[Figure, str] = {"ttft": "TTFT", "e2el": "E2EL"}

_VALUES: dict[Figure, Callable[[Answer], float | None]] = {
    "ttft": lambda answer: answer.ttft_s,
    "e2el": lambda answer: answer.e2el_s,
}


class TopologyResult(msgspec.Struct, frozen=True, kw_only=True):
    """A cell on one topology. Means are in seconds; `gain` is 1 - own mean / the baseline's, over requests that both
    answered, and absent for the baseline and where either did not keep up.
    """

    verdict: Verdict
    num_attempted: int
    num_failed: int
    lag_p99_ms: float
    mean_s: dict[Figure, Interval]
    gain: dict[Figure, Interval]
    used: dict[str, float]

    @property
    def share_failed(self) -> float:
        """Of its requests."""
        return self.num_failed / self.num_attempted if self.num_attempted else 0.0


class CellResult(msgspec.Struct, frozen=True, kw_only=True):
    """A cell on all topologies."""

    cell: Cell
    rate_per_s: float
    num_seeds: int
    topologies: dict[str, TopologyResult]


def results(spec: GridSpec, journal: Journal) -> list[CellResult]:
    """Of all cells of which something was measured, in the grid's order."""
    return [cell_result(spec, cell, runs) for cell in all_cells(spec) if (runs := journal.of(cell))]


def cell_result(spec: GridSpec, cell: Cell, runs: Sequence[Run]) -> CellResult:
    """Sum the runs of one cell up."""
    by_name = {
        name: sorted((run for run in runs if run.topology == name), key=lambda run: run.seed) for name in spec.names
    }
    baseline = by_name[spec.baseline]
    return CellResult(
        cell=cell,
        rate_per_s=statistics.fmean(run.rate_per_s for run in runs),
        num_seeds=len(baseline),
        topologies={name: _topology(own, [] if name == spec.baseline else baseline) for name, own in by_name.items()},
    )


def against(runs: Sequence[Run], ours: str, theirs: str, figure: Figure) -> Interval | None:
    """Our mean over theirs in one cell, over requests that both answered."""
    by_name = {
        name: sorted((run for run in runs if run.topology == name), key=lambda run: run.seed) for name in (ours, theirs)
    }
    return _ratio(by_name[ours], by_name[theirs], figure)


def _topology(own: Sequence[Run], baseline: Sequence[Run]) -> TopologyResult:
    answers = [answer for run in own for answer in run.answers]
    verdict = _verdict(own)
    is_comparable = "unstable" not in (verdict, _verdict(baseline))
    means = {figure: mean_interval([_values(run, figure) for run in own]) for figure in FIGURES}
    gains = {figure: _gain(_ratio(own, baseline, figure)) for figure in FIGURES} if baseline and is_comparable else {}
    return TopologyResult(
        verdict=verdict,
        num_attempted=len(answers),
        num_failed=sum(answer.outcome != FINISHED for answer in answers),
        lag_p99_ms=max(run.lag_p99_ms for run in own),
        mean_s={figure: one for figure, one in means.items() if one is not None and verdict != "unstable"},
        gain={figure: one for figure, one in gains.items() if one is not None},
        used=_mean_shares([run.used for run in own]),
    )


def _verdict(runs: Sequence[Run]) -> Verdict:
    """What at least half of the runs say; the worse of two."""
    for verdict in ("unstable", "invalid"):
        if runs and 2 * sum(run.verdict == verdict for run in runs) >= len(runs):
            return verdict
    return "valid"


def _values(run: Run, figure: Figure) -> list[float]:
    return [value for answer in run.answers if (value := _VALUES[figure](answer)) is not None]


def _ratio(ours: Sequence[Run], theirs: Sequence[Run], figure: Figure) -> Interval | None:
    left: list[list[float]] = []
    right: list[list[float]] = []
    value = _VALUES[figure]
    for one, other in zip(ours, theirs, strict=True):
        pairs = [(value(a), value(b)) for a, b in zip(one.answers, other.answers, strict=True)]
        good = [(a, b) for a, b in pairs if a is not None and b is not None]
        left.append([a for a, _ in good])
        right.append([b for _, b in good])
    return ratio_interval(left, right)


def _gain(ratio: Interval | None) -> Interval | None:
    if ratio is None:
        return None
    return Interval(value=1 - ratio.value, low=1 - ratio.high, high=1 - ratio.low, count=ratio.count)


def _mean_shares(used: Sequence[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for shares in used for name in shares)
    return {name: round(statistics.fmean(shares.get(name, 0.0) for shares in used), 4) for name in names}
