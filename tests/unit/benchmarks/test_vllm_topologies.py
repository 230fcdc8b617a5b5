"""What is said of ways over vLLM, also when one of them did not answer."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.vllm_topologies import WAYS, parsed, serving, summary
from chiasm.cli import serve as command
from chiasm.cli.app import app


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


@pytest.mark.parametrize("way", WAYS[1:])
def test_the_server_of_every_way_takes_its_arguments(way, monkeypatch):
    seen = []
    monkeypatch.setattr(command, "restart_for_arithmetic", lambda: None)
    monkeypatch.setattr(command, "_serve", lambda settings, **_: seen.append(settings))
    words = serving(parsed(["--python", "p"]), way, Path("/models/x"))
    assert CliRunner().invoke(app, ["serve", *words]).exit_code == 0
    (settings,) = seen
    assert (settings.routing.topology, settings.engine.kind, settings.vllm.python) == (way, "vllm", "p")
    assert (settings.routing.workers, settings.routing.encoders) == (1, 1)
