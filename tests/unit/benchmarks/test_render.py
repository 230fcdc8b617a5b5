import json

import pytest

from benchmarks import render
from chiasm.bench.grid.journal import Journal
from chiasm.bench.grid.report.data import make_report
from chiasm.bench.grid.report.files import write_report
from chiasm.bench.machine import describe_machine
from tests.unit.bench.grid.runs import GRID, runs

MACHINE = {
    "date": "2026-01-01 00:00 UTC",
    "commit": "abc",
    "cpu": "A CPU",
    "num_cores": 2,
    "instructions": ["avx2"],
    "memory_gib": 23.0,
    "python": "3.11",
    "load": [0.1, 0.2, 0.3],
    "command": "python -m benchmarks engine",
}


def engine_result(median):
    ratio = {"median": median, "low": median - 0.1, "high": median + 0.1, "rounds": 5}
    entry = {
        "figure": "decode_tokens_per_s",
        "medians": {"chiasm": 1000.0, "vllm": 1000.0 / median},
        "ratios": {"vllm": ratio},
    }
    run = {
        "model": "tiny",
        "dtype": "float32",
        "threads": 1,
        "versions": {"chiasm": {"chiasm": "0.1"}, "vllm": {"vllm": "0.32"}},
        "summary": {"decode 1": entry},
    }
    return {"machine": MACHINE, "results": [run]}


@pytest.mark.parametrize(("median", "verdict"), [(2.6, "2.60 (2.50-2.70), target 2.5 met"), (2.4, "**missed**")])
def test_a_ratio_is_shown_with_its_interval_and_its_target(median, verdict):
    assert verdict in render.engine_section(engine_result(median))


def test_conditions_come_with_the_figures():
    text = render.engine_section(engine_result(2.0))
    assert all(str(word) in text for word in ("A CPU", "commit abc", "load before the start 0.1", MACHINE["command"]))


def test_times_to_first_token_are_shown_as_milliseconds():
    result = engine_result(2.0)
    result["results"][0]["summary"]["decode 1"]["figure"] = "speed_per_s"
    assert "| 1.0 ms |" in render.engine_section(result)


def test_only_the_newest_file_of_a_name_counts(tmp_path):
    for name, value in (("2026-01-01-engine", 1), ("2026-02-01-engine", 2), ("2026-01-05-other", 3)):
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    assert render.load_results(tmp_path) == [2, 3]


def test_the_page_is_what_the_results_say():
    assert render.PAGE.read_text() == render.page(render.load_results(), render.load_grids(), render.load_apart())


def test_fronts_are_shown_with_their_targets():
    figures = dict.fromkeys(
        ["requests_per_s", "median_s", "p99_s", "cpu_s", "added_median_s", "added_p99_s"], 0.001
    ) | {"requests_per_s": 100.0}
    ratio = {"median": 0.7, "low": 0.6, "high": 0.8, "rounds": 3}
    entry = {"fronts": {"worker": figures, "chiasm": figures, "vllm_router": figures}, "ratios": {"vllm_router": ratio}}
    page = render.section({"machine": MACHINE, "rounds": 3, "fronts": {"text": entry, "event stream": entry}})
    assert "0.70 (0.60-0.80), target 0.6 met" in page
    assert "Chiasm 25,600" in page


def test_a_grid_is_shown_without_the_table_of_all_its_cells(tmp_path):
    journal = Journal(tmp_path / "runs.jsonl", GRID, resume=False)
    journal.add(*runs(0.2, 0.4, 0.1))
    folder = tmp_path / "grids" / "2026-01-01-two-workers"
    folder.mkdir(parents=True)
    write_report(folder, make_report(GRID, journal, describe_machine(), "chiasm bench grid"))
    shown = render.page([], render.load_grids(tmp_path / "grids"), dict.fromkeys(render.APART, ()))
    assert "| auto | TTFT | 1 | 0 | 0 | 0 |" in shown
    assert "`benchmarks/results/grids/2026-01-01-two-workers`" in shown
    assert "All cells, mean ms" not in shown
