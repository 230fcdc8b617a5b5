"""`chiasm faults` around the matrix: choosing, listing, the table, the exit status."""

import json

import pytest
from typer.testing import CliRunner

from chiasm.cli.app import app
from chiasm.errors import InvalidSettingError
from chiasm.faults.matrix import SCENARIOS
from chiasm.faults.verdict import Verdict

GOOD = Verdict(
    fault="kv-late",
    topology="e-p-d",
    expected="finished",
    outcome="finished",
    attempts=("prefill prefill-0 ok", "decode decode-0 transfer_failed"),
    elapsed_ms=1234.0,
)
BAD = Verdict(fault="kv-full", topology="e-p-d", expected="overloaded", outcome="finished", problems=("it [is] bad",))


def run(*arguments):
    return CliRunner().invoke(app, ["faults", *arguments])


@pytest.fixture
def judged(monkeypatch):
    """Lets a test say what the matrix comes to; gives the trials that it was asked for."""
    asked, verdicts = [], []

    async def run_matrix(trials, settings, on_trial):
        asked.extend(trials)
        for verdict in verdicts:
            on_trial(verdict.fault, verdict.topology)
            yield verdict

    monkeypatch.setattr("chiasm.faults.matrix.run_matrix", run_matrix)
    monkeypatch.setattr("chiasm.cli.faults.restart_for_arithmetic", lambda: None)
    monkeypatch.setattr("chiasm.observability.logs.configure_logging", lambda level: None)
    return asked, verdicts


def test_the_list_names_every_fault_and_what_is_expected():
    shown = run("--list")
    assert shown.exit_code == 0
    assert all(f"{one.name} ({one.group};" in shown.stdout for one in SCENARIOS)
    rows = json.loads(run("--list", "--json", "--fault", "client", "--topology", "e-p-d").stdout)
    assert {row["topology"] for row in rows} == {"e-p-d"}
    assert {row["expected"] for row in rows} == {"cancelled"}


def test_good_verdicts_are_a_table_and_status_0(judged):
    asked, verdicts = judged
    verdicts.append(GOOD)
    shown = run("--fault", "kv-late")
    assert shown.exit_code == 0, shown.output
    assert [(where, one.name) for where, one in asked] == [("e-p-d", "kv-late")]
    for word in ("kv-late", "good", "decode-0", "transfer_failed", "1234", "0 of 1 verdicts are bad"):
        assert word in shown.stdout


def test_a_bad_verdict_says_why_and_is_status_1(judged):
    judged[1].extend([GOOD, BAD])
    shown = run()
    assert shown.exit_code == 1
    assert "it [is] bad" in shown.output
    assert "1 of 2 verdicts are bad" in shown.output


def test_verdicts_for_programs(judged):
    judged[1].append(BAD)
    shown = CliRunner().invoke(app, ["faults", "--json"])
    assert shown.exit_code == 1
    (row,) = json.loads(shown.stdout)
    assert (row["outcome"], row["problems"]) == ("finished", ["it [is] bad"])


def test_an_unknown_fault_is_refused():
    shown = run("--fault", "gremlins")
    assert isinstance(shown.exception, InvalidSettingError)
    assert "embedding-never" in shown.exception.hint
