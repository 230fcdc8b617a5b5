"""What `chiasm bench load` makes of several runs."""

import json

import pytest
import typer

from chiasm.bench.cell import LoadSpec
from chiasm.bench.metrics.throughput import Throughput
from chiasm.bench.summary import CellSummary, Group, Latencies
from chiasm.bench.validity import ClientHealth
from chiasm.bench.workload.classes import RequestClass
from chiasm.cli.bench.runs import Runs


def summary(verdict):
    group = Group(
        num_attempted=3,
        outcomes={"finished": 3},
        attainment=None,
        mean_prompt_tokens=8.0,
        mean_output_tokens=4.0,
        num_wrong_length=0,
        latencies=Latencies(**dict.fromkeys(Latencies.__struct_fields__)),
    )
    return CellSummary(
        verdict=verdict,
        rate_per_s=2.0,
        client=ClientHealth(
            num_processes=1, cpu_share=0.1, cpu_ms_per_request=1.0, send_lag_p50_ms=0.1, send_lag_p99_ms=0.2
        ),
        stability=None,
        throughput=Throughput(window_s=1.0, requests_per_s=2.0, output_tokens_per_s=8.0, body_mb_per_s=0.0),
        total=group,
        classes={"all": group},
    )


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Makes runs that came to these verdicts."""

    def made(*verdicts, is_json=False):
        spec = LoadSpec(classes=(RequestClass(),))
        found = Runs(tmp_path, spec, url="http://127.0.0.1:9", api_key=None, model=None, is_json=is_json)
        monkeypatch.setattr(found, "_run", lambda _: [summary(one) for one in verdicts])
        return found

    return made


def test_no_valid_run_of_several_is_an_error_and_no_empty_table(runs, capsys):
    with pytest.raises(typer.Exit) as caught:
        runs("unstable", "unstable", "invalid").repeats(2.0, 3)
    printed = capsys.readouterr()
    assert caught.value.exit_code == 1
    assert "none of 3 runs is valid: 2 unstable, 1 invalid" in printed.err
    assert "--rate" in printed.err
    assert "95 % interval" not in printed.out


def test_programs_get_the_runs_all_the_same_and_nothing_after_them(runs, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["chiasm", "bench", "http://127.0.0.1:9", "--json"])
    with pytest.raises(typer.Exit):
        runs("unstable", "unstable", is_json=True).repeats(2.0, 2)
    told = json.loads(capsys.readouterr().out)
    assert [one["verdict"] for one in told["runs"]] == ["unstable", "unstable"]
    assert told["intervals"] == {}


def test_one_valid_run_is_enough_for_a_table(runs, capsys):
    runs("unstable", "valid").repeats(2.0, 2)
    assert "Over 1 valid of 2 runs" in capsys.readouterr().out


def test_a_single_run_that_is_unstable_says_so_itself(runs, capsys):
    runs("unstable").repeats(2.0, 1)
    assert "unstable" in capsys.readouterr().out
