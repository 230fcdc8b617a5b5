"""All that a report says, as data."""

import re
import time
from collections import Counter
from pathlib import Path

import msgspec

from chiasm.bench.grid.cells import Cell, all_cells
from chiasm.bench.grid.journal import Capacity, Journal
from chiasm.bench.grid.promises import Judgement, judgements, losses
from chiasm.bench.grid.results import FIGURES, CellResult, Figure, results
from chiasm.bench.grid.spec import GridSpec
from chiasm.bench.machine import Machine
from chiasm.errors import InvalidSettingError

_SECRET = re.compile("KEY|TOKEN|SECRET|PASS|CREDENTIAL", re.IGNORECASE)


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """A cell in which a split is later than the baseline, and what binds it."""

    cell: Cell
    topology: str
    bound_by: str


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """In how many cells a topology is better or worse than the baseline beyond chance; the others are undecided, and
    so is a better one that failed more requests.


    `best` and `worst` are its gains at the extremes, None without any.
    """

    topology: str
    figure: Figure
    num_better: int
    num_worse: int
    num_undecided: int
    num_unstable: int
    best: float | None
    worst: float | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A grid's results."""

    machine: Machine
    date: str
    command: str
    grid: GridSpec
    num_cells: int
    num_runs: int
    num_requests: int
    num_failed: int
    run_verdicts: dict[str, int]
    capacities: tuple[Capacity, ...]
    cells: tuple[CellResult, ...]
    scores: tuple[Score, ...]
    judgements: tuple[Judgement, ...]
    losses: tuple[Loss, ...]

    @property
    def tally(self) -> dict[str, Counter[str]]:
        """How often each promise is kept, open and broken."""
        counts: dict[str, Counter[str]] = {}
        for one in self.judgements:
            counts.setdefault(one.promise, Counter())[one.outcome] += 1
        return counts


def make_report(spec: GridSpec, journal: Journal, machine: Machine, command: str) -> Report:
    """Of what has been measured so far."""
    found = results(spec, journal)
    return Report(
        machine=machine,
        date=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        command=command,
        grid=_without_secrets(spec),
        num_cells=len(all_cells(spec)),
        num_runs=len(journal.runs),
        num_requests=sum(one.num_attempted for result in found for one in result.topologies.values()),
        num_failed=sum(one.num_failed for result in found for one in result.topologies.values()),
        run_verdicts=dict(Counter(str(run.verdict) for run in journal.runs)),
        capacities=tuple(journal.capacities),
        cells=tuple(found),
        scores=tuple(
            _score(found, name, spec.baseline, figure)
            for name in spec.names
            if name != spec.baseline
            for figure in FIGURES
        ),
        judgements=tuple(one for result in found for one in judgements(spec, result, journal.of(result.cell))),
        losses=tuple(Loss(cell=cell, topology=name, bound_by=by) for cell, name, by in losses(spec, found)),
    )


def _without_secrets(spec: GridSpec) -> GridSpec:
    """The grid for people: variables stay, as they change what is measured, unless they are named as secrets are."""
    shown = {name: "..." if _SECRET.search(name) else value for name, value in spec.environment.items()}
    return msgspec.structs.replace(spec, environment=shown)


def read_report(path: Path) -> Report:
    """Read a report's data from its file. Raises `InvalidSettingError`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidSettingError(f"'{path}' is no report of a grid: {error}") from error


def _score(found: list[CellResult], name: str, baseline: str, figure: Figure) -> Score:
    measured = [one.topologies for one in found if figure in one.topologies[name].gain]
    gains = [one[name].gain[figure] for one in measured]
    fails_more = [one[name].share_failed > one[baseline].share_failed for one in measured]
    num_better = sum(one.low > 0 and not more for one, more in zip(gains, fails_more, strict=True))
    num_worse = sum(one.high < 0 for one in gains)
    return Score(
        topology=name,
        figure=figure,
        num_better=num_better,
        num_worse=num_worse,
        num_undecided=len(gains) - num_better - num_worse,
        num_unstable=sum(result.topologies[name].verdict == "unstable" for result in found),
        best=max((one.value for one in gains), default=None),
        worst=min((one.value for one in gains), default=None),
    )
