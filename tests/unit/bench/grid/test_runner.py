"""What is measured, and when it ends."""

import pytest

from chiasm.bench.grid import runner
from chiasm.bench.grid.cells import all_cells, in_balance
from chiasm.bench.grid.journal import Journal
from chiasm.bench.grid.measure import _steady_per_s
from chiasm.bench.grid.runner import GridWatcher, left_to_measure, measure_grid
from chiasm.errors import EngineError
from tests.unit.bench.grid.runs import CELL, GRID, run


class Seen(GridWatcher):
    def __init__(self):
        self.steps = []
        self.num_left = None
        self.reasons = {}

    def step(self, step):
        self.steps.append(step)

    def skipped(self, kind, reason):
        self.reasons[kind] = reason

    def ended(self, num_left):
        self.num_left = num_left


@pytest.fixture
def measured(monkeypatch):
    """Instead of servers: the rates that were asked for, by cell and seed."""
    rates = {}

    async def measure_seed(cell, seed, rate_per_s, servers, spec):
        rates[cell, seed] = rate_per_s
        return [run(name, seed, [0.1], cell=cell) for name in spec.names]

    async def capacity_per_s(kind, servers, spec):
        assert kind not in {cell.kind for cell, _ in rates}, "measured once"
        return 10.0

    monkeypatch.setattr(runner, "measure_seed", measure_seed)
    monkeypatch.setattr(runner, "capacity_per_s", capacity_per_s)
    return rates


async def test_every_cell_is_measured_with_every_seed_at_its_share_of_the_capacity(tmp_path, measured):
    journal, seen = Journal(tmp_path / "runs.jsonl", GRID, resume=False), Seen()
    await measure_grid(GRID, journal, [], seen)
    assert measured[CELL, 2] == pytest.approx(6.0)
    assert len(measured) == 81 * 3
    assert (len(seen.steps), seen.num_left) == (243, 0)
    assert [step.cell for step in seen.steps[::3]] == in_balance(all_cells(GRID), 0)
    assert left_to_measure(GRID, journal) == []


async def test_only_what_is_left_is_measured(tmp_path, measured):
    journal = Journal(tmp_path / "runs.jsonl", GRID, resume=False)
    journal.add(*(run(name, 1, [0.1]) for name in GRID.names))
    await measure_grid(GRID, journal, [], Seen())
    assert (CELL, 1) not in measured
    assert (CELL, 0) in measured


async def test_time_that_is_over_ends_it_and_is_told(tmp_path, measured):
    seen = Seen()
    await measure_grid(GRID, Journal(tmp_path / "runs.jsonl", GRID, resume=False), [], seen, minutes=0)
    assert (measured, seen.num_left) == ({}, 243)


async def test_the_time_left_is_never_more_than_there_is(tmp_path, measured):
    seen = Seen()
    await measure_grid(GRID, Journal(tmp_path / "runs.jsonl", GRID, resume=False), [], seen, minutes=1)
    assert seen.steps[0].left_s == pytest.approx(60, abs=1)
    assert all(step.left_s <= 60 for step in seen.steps)


async def test_a_kind_that_the_baseline_cannot_answer_costs_its_cells_only(tmp_path, measured, monkeypatch):
    async def refuse(kind, servers, spec):
        if kind == CELL.kind:
            raise EngineError("12 of 12 requests failed")
        return 10.0

    monkeypatch.setattr(runner, "capacity_per_s", refuse)
    journal, seen = Journal(tmp_path / "runs.jsonl", GRID, resume=False), Seen()
    await measure_grid(GRID, journal, [], seen)
    assert seen.reasons == {CELL.kind: "12 of 12 requests failed"}
    assert (len(measured), seen.num_left) == (78 * 3, 9)


def test_capacity_is_the_rate_of_ends_while_all_slots_are_in_use():
    second = 1_000_000_000
    ends = [second * (10 if number == 0 else 10 + number) for number in range(20)]
    ends[-1] += 50 * second  # the last one alone
    assert _steady_per_s(ends, 4) == pytest.approx(1.0)
    assert _steady_per_s([second, 2 * second, 3 * second], 4) == pytest.approx(1.0)
