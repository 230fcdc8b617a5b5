"""The report: what is in it, and that nothing in it breaks the page."""

import xml.etree.ElementTree as ET

import msgspec
import pytest

from chiasm.bench.grid.cells import Cell, Kind
from chiasm.bench.grid.journal import Answer, Capacity, Journal
from chiasm.bench.grid.report import heatmap
from chiasm.bench.grid.report.data import make_report, read_report
from chiasm.bench.grid.report.files import DATA, PAGE, TEXT, dated_as_measured, write_report
from chiasm.bench.grid.report.heatmap import colour, heat_map
from chiasm.bench.grid.report.markdown import markdown_of
from chiasm.bench.grid.report.page import html_of
from chiasm.bench.machine import describe_machine
from chiasm.errors import InvalidSettingError
from tests.unit.bench.grid.runs import CELL, GRID, run, runs

OTHER = Cell(kind=Kind(images=0, tokens=64, output=128), load=0.3)


@pytest.fixture
def report(tmp_path):
    journal = Journal(tmp_path / "runs.jsonl", GRID, resume=False)
    journal.add(Capacity(kind=CELL.kind, per_s=4.0), *runs(0.2, 0.4, 0.1), *runs(0.2, 0.2, 0.4, cell=OTHER))
    return make_report(GRID, journal, describe_machine(), "chiasm bench grid <grid>.toml")


def test_scores_count_what_is_beyond_chance(report):
    scores = {(one.topology, one.figure): one for one in report.scores}
    auto = scores["auto", "ttft"]
    assert (auto.num_better, auto.num_worse, auto.num_undecided) == (1, 1, 0)
    assert auto.best == pytest.approx(0.5, abs=0.02)
    assert scores["e-pd", "ttft"].num_undecided == 1
    assert report.run_verdicts == {"valid": 18}


def test_promises_are_tallied(report):
    kept = report.tally["TTFT of auto at most 1.03 x the best of the others"]
    assert dict(kept) == {"kept": 1, "broken": 1}
    assert [(one.topology, one.cell) for one in report.losses] == [("e-pd", CELL)]


def test_all_of_it_is_in_every_form(report, tmp_path):
    write_report(tmp_path, report)
    assert read_report(tmp_path / DATA) == report
    for name in (PAGE, TEXT):
        text = (tmp_path / name).read_text()
        assert "2 x 64 tokens, output 16, load 0.6" in text
        assert "its encoder is busy 97% of the time" in text
        assert "4.00" in text or name == TEXT
    assert "<grid>" not in (tmp_path / PAGE).read_text()
    assert "All cells" not in markdown_of(report, has_cells=False)
    assert "\n#### Gain" in markdown_of(report, 3)


def test_what_failed_is_said_beside_every_gain(tmp_path):
    journal = Journal(tmp_path / "runs.jsonl", GRID, resume=False)
    found = runs(0.2, 0.25, 0.1)
    lost = tuple(Answer(one.at_s, None, None, None, "error") for one in found[0].answers[:3])
    journal.add(
        *(
            msgspec.structs.replace(one, answers=(*lost, *one.answers[3:])) if one.topology == "auto" else one
            for one in found
        )
    )
    report = make_report(GRID, journal, describe_machine(), "")
    assert {one.num_better for one in report.scores if one.topology == "auto"} == {0}
    drawn = heat_map(GRID, report.cells, "auto", "ttft", 0.6, "cold")
    assert " !" in drawn
    assert "failed: 9 here, 0 of agg" in drawn
    for text in (html_of(report), markdown_of(report)):
        assert "9 failed" in text


def test_no_secret_of_the_grid_file_is_in_the_report(tmp_path):
    spec = msgspec.structs.replace(GRID, environment={"HF_TOKEN": "hf_secret", "OMP_NUM_THREADS": "1"})
    journal = Journal(tmp_path / "runs.jsonl", spec, resume=False)
    journal.add(*runs(0.2, 0.4, 0.1))
    write_report(tmp_path, make_report(spec, journal, describe_machine(), ""))
    for name in (PAGE, TEXT, DATA):
        assert "hf_secret" not in (tmp_path / name).read_text("utf-8")
    assert "OMP_NUM_THREADS" in (tmp_path / PAGE).read_text("utf-8")


def test_a_report_of_what_was_known_before_keeps_its_date(report, tmp_path):
    assert dated_as_measured(report, tmp_path) is report
    write_report(tmp_path, msgspec.structs.replace(report, date="2020-01-01 00:00 UTC", command="as it was"))
    found = dated_as_measured(report, tmp_path)
    assert (found.date, found.command, found.cells) == ("2020-01-01 00:00 UTC", "as it was", report.cells)


def test_another_file_is_no_report(tmp_path):
    (tmp_path / DATA).write_text("{}")
    with pytest.raises(InvalidSettingError, match="no report"):
        read_report(tmp_path / DATA)


def test_a_heat_map_says_each_cell_once(report):
    drawn = heat_map(GRID, report.cells, "auto", "ttft", 0.6, "cold")
    squares = ET.fromstring(drawn).findall("g")
    said = [square.find("title").text for square in squares]
    assert len(said) == 5 * 6
    assert said.count("not measured") == 29
    assert any("+50." in text or "+49." in text for text in said)


def test_a_square_is_wide_enough_for_any_interval():
    longest = "\N{MINUS SIGN}138…\N{MINUS SIGN}102 ? !"
    assert len(longest) * 10.5 * 0.55 <= heatmap._SIDE - heatmap._GAP, (
        "10.5 px a letter, whose mean width is 0.55 of that"
    )


def test_overload_is_said_instead_of_a_gain(tmp_path):
    journal = Journal(tmp_path / "runs.jsonl", GRID, resume=False)
    journal.add(*(run(name, 0, [0.2] * 20, verdict="unstable" if name == "agg" else "valid") for name in GRID.names))
    found = make_report(GRID, journal, describe_machine(), "")
    assert "agg does not keep up" in heat_map(GRID, found.cells, "auto", "ttft", 0.6, "cold")
    assert found.judgements[-1].outcome == "kept"  # earlier than agg, which cannot
    assert "does not keep up" in html_of(found)


def test_gains_and_losses_have_colours_of_their_own():
    assert colour(0.0) == "#f1f3f5"
    assert len({colour(0.1), colour(-0.1), colour(0.6), colour(-0.6)}) == 4
    assert colour(5.0) == colour(0.6)


def test_a_title_is_text_and_no_markup(report):
    evil = msgspec.structs.replace(report, grid=msgspec.structs.replace(GRID, title="<script>alert(1)</script>"))
    assert "<script>" not in html_of(evil)
    assert "default-src 'none'" in html_of(evil)
