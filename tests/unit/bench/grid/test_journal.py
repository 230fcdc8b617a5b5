"""A grid that was cut short goes on."""

import msgspec
import pytest

from chiasm.bench.grid.journal import Capacity, Journal
from chiasm.bench.grid.spec import Topology
from chiasm.errors import InvalidSettingError
from tests.unit.bench.grid.runs import CELL, GRID, run


def test_what_was_measured_is_read_again(tmp_path):
    path = tmp_path / "runs.jsonl"
    journal = Journal(path, GRID, resume=False)
    journal.add(Capacity(kind=CELL.kind, per_s=4.0))
    journal.add(*(run(name, 0, [0.1]) for name in GRID.names))
    path.write_text(path.read_text() + '{"type": "run", "ce')  # killed while writing
    again = Journal(path, GRID, resume=True)
    assert again.capacity(CELL.kind) == 4.0
    assert [one.topology for one in again.of(CELL, 0)] == list(GRID.names)
    assert again.of(CELL, 1) == []
    again.add(*(run(name, 1, [0.1]) for name in GRID.names))
    assert len(Journal(path, GRID, resume=True).of(CELL)) == 6


def test_of_runs_that_were_cut_off_all_are_measured_again(tmp_path):
    path = tmp_path / "runs.jsonl"
    Journal(path, GRID, resume=False).add(run("agg", 0, [9.0]), run("e-pd", 0, [9.0]))  # killed before auto's
    journal = Journal(path, GRID, resume=True)
    assert journal.of(CELL) == []
    journal.add(*(run(name, 0, [0.1] * 8) for name in GRID.names))
    again = Journal(path, GRID, resume=True)
    assert [(one.topology, len(one.answers)) for one in again.of(CELL)] == [(name, 8) for name in GRID.names]


@pytest.mark.parametrize("content", ["hello", "hello\nmore"])
def test_a_file_that_is_no_journal_stays_as_it_is(tmp_path, content):
    (tmp_path / "runs.jsonl").write_text(content)
    with pytest.raises(InvalidSettingError, match="no journal"):
        Journal(tmp_path / "runs.jsonl", GRID, resume=True)
    assert (tmp_path / "runs.jsonl").read_text() == content


def test_nothing_is_written_over(tmp_path):
    Journal(tmp_path / "runs.jsonl", GRID, resume=False)
    with pytest.raises(InvalidSettingError, match="there already"):
        Journal(tmp_path / "runs.jsonl", GRID, resume=False)


def test_levels_may_be_added_and_what_runs_mean_may_not_change(tmp_path):
    path = tmp_path / "runs.jsonl"
    Journal(path, GRID, resume=False)
    Journal(path, msgspec.structs.replace(GRID, images=(0, 16), seeds=5, title="More"), resume=True)
    others = (Topology(name="agg", serve=("--topology", "agg")), *GRID.topologies[1:])
    for changed in ({"seconds": 9.0}, {"topologies": others}, {"loads": (), "rates": (0.3,)}):
        with pytest.raises(InvalidSettingError, match="another grid"):
            Journal(path, msgspec.structs.replace(GRID, **changed), resume=True)


def test_another_file_is_no_journal(tmp_path):
    (tmp_path / "runs.jsonl").write_text("hello\n")
    with pytest.raises(InvalidSettingError, match="no journal"):
        Journal(tmp_path / "runs.jsonl", GRID, resume=True)
