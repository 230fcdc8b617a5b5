"""Means, gains and promises of a cell."""

import msgspec
import pytest

from chiasm.bench.grid.journal import Answer
from chiasm.bench.grid.promises import binding, judgements, losses
from chiasm.bench.grid.results import cell_result
from chiasm.bench.statistics.pairs import ratio_interval
from tests.unit.bench.grid.runs import CELL, GRID, run, runs


def test_gains_are_those_of_the_same_requests():
    result = cell_result(GRID, CELL, runs(0.2, 0.25, 0.1))
    auto, split = result.topologies["auto"], result.topologies["e-pd"]
    assert auto.gain["ttft"].value == pytest.approx(0.5, abs=0.02)
    assert auto.gain["e2el"].value == pytest.approx(0.2, abs=0.02)
    assert split.gain["ttft"].high < 0
    assert split.mean_s["ttft"].value == pytest.approx(0.25, abs=0.01)
    assert result.topologies["agg"].gain == {}
    assert result.num_seeds == 3


def test_failed_requests_are_counted_and_not_compared():
    found = [run("agg", 0, [0.2] * 20), run("e-pd", 0, [0.2] * 20), run("auto", 0, [9.0] * 20, outcome="timed_out")]
    auto = cell_result(GRID, CELL, found).topologies["auto"]
    assert (auto.num_attempted, auto.num_failed) == (20, 20)
    assert (auto.mean_s, auto.gain) == ({}, {})


def test_a_topology_that_cannot_keep_up_has_no_mean_and_no_gain():
    found = [run(name, seed, [0.2] * 20, verdict="unstable" if name == "auto" else "valid")
             for seed in range(3) for name in GRID.names]  # fmt: skip
    result = cell_result(GRID, CELL, found)
    auto = result.topologies["auto"]
    assert (auto.verdict, auto.mean_s, auto.gain) == ("unstable", {}, {})
    assert {one.outcome for one in judgements(GRID, result, found)} == {"broken"}


def test_one_bad_run_of_three_does_not_decide():
    found = [run(name, seed, [0.2] * 20, verdict="invalid" if seed == 0 else "valid")
             for seed in range(3) for name in GRID.names]  # fmt: skip
    assert cell_result(GRID, CELL, found).topologies["auto"].verdict == "valid"


@pytest.mark.parametrize(
    ("auto", "outcome"), [(0.15, "kept"), (0.2, "kept"), (0.3, "broken")], ids=["better", "equal", "worse"]
)
def test_the_judged_topology_against_the_best_of_the_others(auto, outcome):
    found = runs(0.2, 0.25, auto)
    first = judgements(GRID, cell_result(GRID, CELL, found), found)[0]
    assert (first.other, first.outcome) == ("agg", outcome)
    assert first.ratio.value == pytest.approx(auto / 0.2, rel=0.05)


def test_an_interval_that_holds_the_limit_leaves_it_open():
    waits = {"agg": [1.0] * 8 + [2.0] * 8, "auto": [2.0] * 8 + [1.0] * 8, "e-pd": [9.0] * 16}
    found = [run(name, 0, waits[name]) for name in GRID.names]
    assert judgements(GRID, cell_result(GRID, CELL, found), found)[0].outcome == "open"


def test_a_late_client_judges_nobody():
    found = [run(name, 0, [0.2] * 20, verdict="invalid") for name in GRID.names]
    assert judgements(GRID, cell_result(GRID, CELL, found), found) == []


def test_a_topology_is_not_better_for_answering_only_what_is_easy():
    found = runs(0.2, 0.25, 0.1)
    quick = [one for one in found if one.topology == "auto"]
    easy = tuple(
        one if number % 2 else Answer(one.at_s, None, None, None, "timed_out")
        for number, one in enumerate(quick[0].answers)
    )
    found = [msgspec.structs.replace(one, answers=easy) if one in quick else one for one in found]
    result = cell_result(GRID, CELL, found)
    assert result.topologies["auto"].gain["ttft"].low > 0.4
    assert result.topologies["auto"].share_failed == 0.5
    assert {one.outcome for one in judgements(GRID, result, found)} == {"open"}


def test_where_nobody_keeps_up_no_split_loses():
    found = [run(name, 0, [0.2] * 20, verdict="unstable") for name in GRID.names]
    assert losses(GRID, [cell_result(GRID, CELL, found)]) == []
    found = [run(name, 0, [0.2] * 20, verdict="unstable" if name == "e-pd" else "valid") for name in GRID.names]
    assert [name for _, name, _ in losses(GRID, [cell_result(GRID, CELL, found)])] == ["e-pd"]


def test_hardly_any_pairs_decide_nothing():
    assert ratio_interval([[0.1]], [[0.2]]) is None
    assert cell_result(GRID, CELL, [run(name, 0, [0.2]) for name in GRID.names]).topologies["auto"].gain == {}


def test_a_split_that_loses_says_what_binds_it():
    lost = losses(GRID, [cell_result(GRID, CELL, runs(0.2, 0.4, 0.2))])
    assert lost == [(CELL, "e-pd", "its encoder is busy 97% of the time, gateway 30%, prefill and decode 20%")]
    assert binding(cell_result(GRID, CELL, runs(0.2, 0.4, 0.2)).topologies["agg"]) is None


def test_requests_that_queue_behind_each_other_widen_the_interval():
    alone = [[1.0 + 0.5 * (number % 2) for number in range(64)]]
    queued = [[1.0 + 0.5 * (number // 8 % 2) for number in range(64)]]
    base = [[1.0] * 64]
    narrow, wide = ratio_interval(alone, base), ratio_interval(queued, base)
    assert narrow.value == wide.value == pytest.approx(1.25)
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)
    assert ratio_interval([[]], [[]]) is None
