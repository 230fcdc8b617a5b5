"""What is said of ways over vLLM, also when one of them did not answer."""

import pytest

from benchmarks.vllm_topologies import parsed, summary


def times(*seconds):
    return [None if one is None else {"ttft_s": one, "e2e_s": 2 * one} for one in seconds]


def test_ways_are_compared_where_both_answered():
    cells = summary({"vllm": times(1.0, 2.0, None, 4.0), "e-pd": times(2.0, None, 9.0, 8.0)})
    assert cells["e-pd"]["ttft_s_ratio"]["value"] == 2.0
    assert cells["e-pd"]["ttft_s_ratio"]["count"] == 2
    assert [cells[way]["unanswered"] for way in ("vllm", "e-pd")] == [1, 1]


def test_a_way_that_answered_nothing_has_no_times_and_no_verdict():
    cells = summary({"vllm": times(1.0, 1.0), "auto": times(None, None)})
    assert cells["auto"] == {"unanswered": 2}


def test_auto_is_judged():
    cells = summary({"vllm": times(*[1.0] * 8), "auto": times(*[0.5] * 8)})
    assert len(cells["auto"]["verdicts"]) == 2
    assert "kept" in cells["auto"]["verdicts"][0]


def test_variables_of_the_topologies_servers_are_given_by_name():
    assert parsed(["--python", "p", "--way-environment", "A=1", "B="]).way_environment == ["A=1", "B="]
    with pytest.raises(SystemExit):
        parsed(["--python", "p", "--way-environment", "A"])
