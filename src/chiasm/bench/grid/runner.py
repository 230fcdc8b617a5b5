"""Measuring a grid: cell by cell in a balanced order, until all are done or the time is over."""

import time
from collections.abc import Sequence

import msgspec

from chiasm.bench.grid.cells import Cell, Kind, all_cells, in_balance
from chiasm.bench.grid.journal import Capacity, Journal
from chiasm.bench.grid.measure import capacity_per_s, measure_seed
from chiasm.bench.grid.servers import Server
from chiasm.bench.grid.spec import GridSpec
from chiasm.errors import EngineError


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """Where a grid has come to. `left_s` is an estimate, None before there is anything to estimate from."""

    cell: Cell
    seed: int
    num_done: int
    num_steps: int
    left_s: float | None


class GridWatcher:
    """Is told how a grid goes. Does nothing; a command shows it."""

    def started(self, servers: Sequence[Server]) -> None:
        """The servers answer."""

    def step(self, step: Step) -> None:
        """A cell with one seed begins, on all servers."""

    def skipped(self, kind: Kind, reason: str) -> None:
        """Cells of a kind are left out, since the baseline's capacity could not be measured."""

    def ended(self, num_left: int) -> None:
        """So many cells and seeds are left for another time."""


def left_to_measure(spec: GridSpec, journal: Journal) -> list[tuple[Cell, int]]:
    """Cells and seeds in their order, without those that are there."""
    return [
        (cell, seed)
        for cell in in_balance(all_cells(spec), spec.order_seed)
        for seed in range(spec.seeds)
        if {run.topology for run in journal.of(cell, seed)} < set(spec.names)
    ]


async def measure_grid(
    spec: GridSpec, journal: Journal, servers: Sequence[Server], watcher: GridWatcher, *, minutes: float | None = None
) -> None:
    """Measure what is left. No seed of a cell begins after `minutes`; kinds that the baseline cannot answer are left
    out.

    Raises:
        EngineError: A client process failed. What was measured is kept.
    """
    steps = left_to_measure(spec, journal)
    start_s = time.monotonic()
    skipped: set[Kind] = set()
    watcher.started(servers)
    for number, (cell, seed) in enumerate(steps):
        passed_s = time.monotonic() - start_s
        if minutes is not None and passed_s >= 60 * minutes:
            watcher.ended(len(steps) - number)
            return
        watcher.step(
            Step(
                cell=cell,
                seed=seed,
                num_done=number,
                num_steps=len(steps),
                left_s=_left_s(passed_s, number, len(steps), minutes),
            )
        )
        if cell.kind in skipped:
            continue
        try:
            rate_per_s = cell.load * await _capacity(cell, journal, servers, spec) if spec.is_by_share else cell.load
        except EngineError as error:
            skipped.add(cell.kind)
            watcher.skipped(cell.kind, error.message)
            continue
        journal.add(*await measure_seed(cell, seed, rate_per_s, servers, spec))
    watcher.ended(len(left_to_measure(spec, journal)))


async def _capacity(cell: Cell, journal: Journal, servers: Sequence[Server], spec: GridSpec) -> float:
    known = journal.capacity(cell.kind)
    if known is None:
        known = await capacity_per_s(cell.kind, servers, spec)
        journal.add(Capacity(kind=cell.kind, per_s=known))
    return known


def _left_s(passed_s: float, num_done: int, num_steps: int, minutes: float | None) -> float | None:
    """By the mean so far, and no longer than there is time."""
    until_over_s = None if minutes is None else max(0.0, 60 * minutes - passed_s)
    if not num_done:
        return until_over_s
    all_s = passed_s / num_done * (num_steps - num_done)
    return all_s if until_over_s is None else min(all_s, until_over_s)
