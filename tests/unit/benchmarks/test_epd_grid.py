"""The grid's order, what it keeps, and what it concludes."""

import random

import pytest

from benchmarks import epd_grid
from benchmarks.epd import tables
from benchmarks.epd.cells import Cell, all_cells, in_balance
from benchmarks.epd.progress import Progress
from benchmarks.epd.verdicts import binding, summarise, tally

CELLS = all_cells([0, 1, 2, 4, 8], [64, 256], [16, 128, 512], [0.3, 0.6, 0.85])
CELL = Cell(2, 64, 16, 0.6)
USED = {"gateway": 0.3, "encoder": 0.97, "prefill and decode": 0.2}


def row(topology, seed, first_s, *, end_s=0.5, error=""):
    answers = [
        {"index": number, "sent_s": 0.0, "first_token_s": value, "end_s": end_s, "error": error}
        for number, value in enumerate(first_s)
    ]
    return {
        "cell": str(CELL),
        "shape": vars(CELL),
        "seed": seed,
        "topology": topology,
        "used": USED,
        "answers": answers,
    }


def rows(agg, split, auto, seeds=3):
    """Answers around a mean for each topology, the same noise in all: paired."""
    found = []
    for seed in range(seeds):
        noise = [random.Random(f"{seed} {number}").gauss(0, 0.01) for number in range(40)]
        for topology, mean in (("agg", agg), ("e-pd", split), ("auto", auto)):
            found.append(row(topology, seed, [mean + one for one in noise]))
    return found


def test_sizes_of_pictures_mean_nothing_without_pictures():
    assert len(CELLS) == 81
    assert len({cell for cell in CELLS if not cell.images}) == 9


def test_every_start_of_the_order_covers_all_levels_evenly():
    order = in_balance(CELLS, 0)
    assert sorted(map(str, order)) == sorted(map(str, CELLS))
    for length in (15, 30, 45):
        for factor in ("output", "load"):
            seen = [getattr(cell, factor) for cell in order[:length]]
            counts = [seen.count(level) for level in set(seen)]
            assert len(counts) == 3
            assert max(counts) - min(counts) <= 2
        assert {cell.images for cell in order[:length]} == {0, 1, 2, 4, 8}
    assert in_balance(CELLS, 0) == order
    assert in_balance(CELLS, 1) != order


def test_a_run_that_was_cut_short_goes_on(tmp_path):
    path = tmp_path / "scratch" / "grid.jsonl"
    progress = Progress(path, resume=False)
    progress.add({"cell": "a", "seed": 0})
    progress.add({"cell": "a", "seed": 1})
    path.write_text(path.read_text() + '{"cell": "b", "se')  # killed while writing
    resumed = Progress(path, resume=True)
    assert resumed.found(cell="a", seed=1) == [{"cell": "a", "seed": 1}]
    resumed.add({"cell": "b", "seed": 0})
    assert [one["cell"] for one in Progress(path, resume=True).rows] == ["a", "a", "b"]


def test_a_new_run_puts_an_older_one_aside(tmp_path):
    path = tmp_path / "grid.jsonl"
    Progress(path, resume=False).add({"cell": "a"})
    assert Progress(path, resume=False).rows == []
    assert (tmp_path / "grid.jsonl.old").exists()


def test_what_is_measured_already_is_not_measured_again(tmp_path, monkeypatch):
    def never(*_):
        raise AssertionError("nothing is left to measure")

    monkeypatch.setattr(epd_grid, "run_schedule", never)
    args = epd_grid.parsed(["--seeds", "1"])
    progress = Progress(tmp_path / "grid.jsonl", resume=False)
    progress.add({"capacity_of": CELL.kind, "per_s": 4.0})
    for topology in ("agg", "e-pd", "auto"):
        progress.add(row(topology, 0, [0.1]))
    epd_grid.measure_cell(CELL, dict.fromkeys(("agg", "e-pd", "auto")), progress, args)


def test_time_that_is_over_ends_a_run_between_cells(tmp_path, monkeypatch):
    measured = []
    monkeypatch.setattr(epd_grid, "measure_cell", lambda cell, *_: measured.append(cell))
    args = epd_grid.parsed(["--minutes", "1e-9"])
    epd_grid.measure(CELLS, {}, Progress(tmp_path / "grid.jsonl", resume=False), args)
    assert measured == []
    args = epd_grid.parsed(["--minutes", "60"])
    epd_grid.measure(CELLS[:3], {}, Progress(tmp_path / "other.jsonl", resume=False), args)
    assert measured == CELLS[:3]


def test_loads_need_a_capacity(capsys):
    with pytest.raises(SystemExit):
        epd_grid.parsed(["--topologies", "auto"])
    assert "agg" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("auto", "outcome"), [(0.15, "kept"), (0.2, "kept"), (0.3, "broken")], ids=["better", "equal", "worse"]
)
def test_auto_against_the_best_fixed_topology(auto, outcome):
    entry = summarise(rows(0.2, 0.25, auto), CELL, ("agg", "e-pd", "auto"))
    assert entry["auto"]["first_token_s"]["best fixed"] == "agg"
    assert entry["auto"]["first_token_s"]["against best"]["value"] == pytest.approx(auto / 0.2, rel=0.05)
    assert any(f"worse than agg: {outcome}" in line for line in entry["verdicts"])


def test_an_interval_that_holds_the_limit_leaves_it_open():
    noisy = [
        row(name, 0, [value] * 2 + [value * spread] * 2) for name, value, spread in (("agg", 1, 2), ("auto", 2, 0.5))
    ]
    entry = summarise(noisy, CELL, ("agg", "auto"))
    assert any("open" in line for line in entry["verdicts"])


def test_a_split_that_loses_says_what_binds_it():
    entry = summarise(rows(0.2, 0.4, 0.2), CELL, ("agg", "e-pd", "auto"))
    assert any("its encoder is busy 97%" in line for line in entry["verdicts"])
    assert binding({}) == "what binds it was not measured"


def test_failed_requests_are_counted_and_not_compared():
    found = rows(0.2, 0.25, 0.2, seeds=1)
    found[0]["answers"][0] |= {"error": "overloaded", "first_token_s": 99.0}
    entry = summarise(found, CELL, ("agg", "e-pd", "auto"))
    assert entry["errors"]["agg"] == 1
    assert entry["means"]["first_token_s"]["agg"]["value"] < 1
    assert entry["auto"]["first_token_s"]["against agg"]["count"] == 39


def test_promises_are_tallied_and_shown():
    summary = [summarise(rows(0.2, 0.4, auto), CELL, ("agg", "e-pd", "auto")) for auto in (0.15, 0.3)]
    counted = tally(summary)
    assert counted["first token: auto earlier than agg"] == {"kept": 1, "broken": 1, "open": 0}
    text = tables.grid_table({"summary": summary, "tally": counted, "topologies": ["agg", "e-pd", "auto"]})
    assert "| first token: auto earlier than agg | 1 | 0 | 1 |" in text
    assert "its encoder is busy 97%" in text
    assert "| 0.6 | ▁ 0.75 |" in text


def test_scenarios_are_shown():
    ratio = {"value": 1.1, "low": 1.05, "high": 1.2, "count": 5}
    mixed = {"rate_per_s": 2.0, "ratios": {"agg": ratio}, "verdicts": ["agg: ... open"]}
    assert "| 1.10 (1.05-1.20) | - | - |" in tables.mixed_table(mixed)
    repeat = {"ratios": {"auto": ratio}, "encodes": {"auto": 0.0}, "decodes": {"auto": 0.0}, "verdicts": []}
    assert "| auto | 1.10 (1.05-1.20) | 0 | 0 |" in tables.repeat_table(repeat)
    stages = {f"{kind}{stage}_s": 0.001 for kind in ("", "critical_") for stage in tables.STAGES}
    way = {
        "images": 1,
        "is_known": True,
        "way": "raw",
        "took_s": 0.02,
        "decoded": 0.0,
        "encoded": 0.0,
        "cpu encoder": 0.003,
    }
    assert "| 1 | yes | raw | 20.0 | 1.0 (1.0) |" in tables.forwarding_table({"table": [way | stages]})
