"""What was measured so far, one line each, so that a grid that was cut short can go on."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from chiasm.bench.grid.cells import Cell, Kind
from chiasm.bench.grid.spec import GridSpec
from chiasm.bench.summary import Verdict
from chiasm.errors import InvalidSettingError

JOURNAL = "runs.jsonl"


class Begin(msgspec.Struct, frozen=True, kw_only=True, tag="grid"):
    """The first line: what is measured."""

    grid: GridSpec


class Capacity(msgspec.Struct, frozen=True, kw_only=True, tag="capacity"):
    """Requests of a kind that the baseline answers in a second."""

    kind: Kind
    per_s: float


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """One measured request: instants in seconds. TTFT and E2EL count from the scheduled start, and are None for a
    request that did not finish.
    """

    at_s: float
    ttft_s: float | None
    e2el_s: float | None
    tpot_s: float | None
    outcome: str


class Run(msgspec.Struct, frozen=True, kw_only=True, tag="run"):
    """A cell on one topology with one seed. `used` is each process's share of a core."""

    cell: Cell
    seed: int
    topology: str
    rate_per_s: float
    verdict: Verdict
    problems: tuple[str, ...]
    lag_p99_ms: float
    used: dict[str, float]
    answers: tuple[Answer, ...]


Line = Begin | Capacity | Run


class Journal:
    """A file of lines, read at the start and appended to."""

    def __init__(self, path: Path, grid: GridSpec, *, resume: bool) -> None:
        """Begin a new file, or go on with one.

        Raises:
            InvalidSettingError: There is one already and `resume` is not set, or it is of another grid.
        """
        self._path = path
        if path.exists() and not resume:
            raise InvalidSettingError(
                f"'{path}' is there already", hint="Go on with it by --resume, or choose another --output"
            )
        lines = _read(path) if path.exists() else []
        self.capacities = [line for line in lines if isinstance(line, Capacity)]
        self.runs = whole_runs([line for line in lines if isinstance(line, Run)], set(grid.names))
        begin = next((line for line in lines if isinstance(line, Begin)), None)
        if begin is None:
            self._append(Begin(grid=grid))
        elif _measured(begin.grid) != _measured(grid):
            raise InvalidSettingError(
                "The folder has results of another grid", hint="Choose another --output, or take the old grid file back"
            )

    def add(self, *lines: Capacity | Run) -> None:
        """Keep lines at once; those of a pair come together."""
        self._append(*lines)
        self.capacities += [line for line in lines if isinstance(line, Capacity)]
        self.runs += [line for line in lines if isinstance(line, Run)]

    def capacity(self, kind: Kind) -> float | None:
        """What was found for a kind."""
        return next((one.per_s for one in self.capacities if one.kind == kind), None)

    def of(self, cell: Cell, seed: int | None = None) -> list[Run]:
        """The runs of a cell, or of one of its seeds."""
        return [run for run in self.runs if run.cell == cell and seed in (None, run.seed)]

    def _append(self, *lines: Line) -> None:
        with self._path.open("ab") as file:
            file.write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


def _measured(grid: GridSpec) -> GridSpec:
    """What of a grid decides whether runs belong together: levels and seeds may be added to it."""
    return msgspec.structs.replace(
        grid, title="", note="", judged=None, most_worse=1.0, images=(0,), tokens=(1,), outputs=(1,),
        loads=grid.loads[:1] and (1.0,), rates=grid.rates[:1] and (1.0,), caches=("cold",), seeds=1, order_seed=0,
    )  # fmt: skip


def whole_runs(runs: Sequence[Run], names: set[str]) -> list[Run]:
    """Runs of cells and seeds that every topology has: of one that was cut off, all are measured again."""
    last = {(run.cell, run.seed, run.topology): run for run in runs}
    seen: dict[tuple[Cell, int], set[str]] = {}
    for cell, seed, topology in last:
        seen.setdefault((cell, seed), set()).add(topology)
    return [run for (cell, seed, _), run in last.items() if seen[cell, seed] >= names]


def _read(path: Path) -> list[Line]:
    """All whole lines; one that was being written when the run ended is cut off, in a file that is a journal."""
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)
    try:
        lines = [decoder.decode(line) for line in whole.splitlines()]
    except msgspec.DecodeError as error:
        raise InvalidSettingError(f"'{path}' is no journal of a grid: {error}") from error
    if data and not lines:
        raise InvalidSettingError(f"'{path}' is no journal of a grid")
    if whole != data:
        path.write_bytes(whole)
    return lines
