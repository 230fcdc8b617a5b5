"""`chiasm simulate` and `chiasm advise` on the command line."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chiasm.cli.app import app
from chiasm.errors import InvalidSettingError
from chiasm.simulator.calibration import load_calibration, save_calibration

COSTS = {
    "prefill": {"fixed_s": 0.004, "per_unit_s": 1e-4},
    "encode": {"per_unit_s": 2e-4},
    "step": {"fixed_s": 0.003, "per_unit_s": 0.0005},
    "transfer": {"fixed_s": 0.002},
}
FEW = ["--requests", "40", "--osl", "8"]


@pytest.fixture
def costs(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(COSTS))
    return str(path)


def run(*arguments):
    result = CliRunner().invoke(app, [*arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_where_a_file_cannot_be_written_is_said_before_the_work(costs, tmp_path, monkeypatch):
    monkeypatch.setattr("chiasm.simulator.compare.compare", None)
    for option in ("--html", "--markdown", "--timeline"):
        with pytest.raises(InvalidSettingError, match="no folder for"):
            run("simulate", "--calibration", costs, option, str(tmp_path / "none" / "x.html"), *FEW)
    with pytest.raises(InvalidSettingError, match="is a folder"):
        run("advise", "--calibration", costs, "--html", str(tmp_path), *FEW)
    with pytest.raises(InvalidSettingError, match="no folder for"):
        run("trace", "export", "http://127.0.0.1:9", "-o", str(tmp_path / "none" / "x.jsonl"))


@pytest.mark.parametrize("is_there", [True, False])
def test_so_is_that_it_may_not_be_written(costs, tmp_path, monkeypatch, is_there):
    file = tmp_path / "x.html"
    file.touch() if is_there else None
    refused = file if is_there else tmp_path
    monkeypatch.setattr("chiasm.simulator.compare.compare", None)
    monkeypatch.setattr("chiasm.cli.files.os.access", lambda path, mode: mode != os.W_OK or Path(path) != refused)
    with pytest.raises(InvalidSettingError, match="cannot be written: Permission denied"):
        run("simulate", "--calibration", costs, "--html", str(file), *FEW)


def test_so_are_names_that_the_system_does_not_even_look_for(costs, monkeypatch):
    monkeypatch.setattr("chiasm.simulator.compare.compare", None)
    with pytest.raises(InvalidSettingError, match="cannot be written: File name too long"):
        run("simulate", "--calibration", costs, "--html", "x" * 300, *FEW)


def test_names_of_classes_in_a_trace_are_no_markup(costs, tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps({"at_s": n, "class": "[/x]", "output_tokens": 4}) + "\n" for n in range(40)))
    assert "[/x]" in run("trace", "show", str(trace))
    assert "[/x]" in run("simulate", "--calibration", costs, "--fleet", "agg:1", "--trace", str(trace))
    assert "[/x]" in run("advise", "--calibration", costs, "--trace", str(trace), "--quick", "--json")


def test_pages_are_in_the_encoding_that_they_say(costs, tmp_path):
    words = ["simulate", "--calibration", costs, "--html", "x.html", "--markdown", "x.md", *FEW]
    strict = [sys.executable, "-X", "warn_default_encoding", "-W", "error::EncodingWarning", "-m", "chiasm"]
    done = subprocess.run([*strict, *words], cwd=tmp_path, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_simulate_prints_a_row_for_each_fleet_and_class(costs):
    printed = run(
        "simulate", "--calibration", costs, "--fleet", "agg:1", "--fleet", "e-pd:1,1", "--text-share", "0.5", *FEW
    )
    assert "agg x1" in printed
    assert "1E+1PD" in printed
    assert printed.count("images") == printed.count("text") == 2


def test_simulate_prints_json_and_writes_a_timeline(costs, tmp_path):
    trace = tmp_path / "trace.json"
    printed = run("simulate", "--calibration", costs, "--json", "--timeline", str(trace), "--slo-ttft-ms", "1000", *FEW)
    summaries = json.loads(printed)
    assert [one["cluster"] for one in summaries] == ["agg x2", "auto x2", "1E+1PD"]
    assert all(one["all"]["attained"] == 1.0 for one in summaries)
    names = {event["args"].get("name") for event in json.loads(trace.read_text())["traceEvents"]}
    assert {"encode-0", "serve-0"} <= names


def test_traffic_may_come_from_a_file(costs, tmp_path):
    file = tmp_path / "traffic.json"
    file.write_text(json.dumps({"classes": [{"name": "mine", "output_tokens": 3}], "num_requests": 25}))
    printed = run("simulate", "--calibration", costs, "--traffic", str(file), "--fleet", "agg:1", "--json")
    (summary,) = json.loads(printed)
    assert [one["name"] for one in summary["classes"]] == ["mine"]


def test_advise_prints_a_page_and_writes_it(costs, tmp_path):
    page = tmp_path / "advice.md"
    printed = run(
        "advise", "--calibration", costs, "--images", "4", "--rate", "0.5", "--quick", "--markdown", str(page), *FEW
    )
    assert page.read_text().startswith(("# Take ", "# No clear winner"))
    assert "could be split off" in printed


def test_advise_takes_goodput_as_its_aim_where_a_demand_is_given(costs):
    found = json.loads(run("advise", "--calibration", costs, "--slo-ttft-ms", "500", "--quick", "--json", *FEW))
    assert found["choice"]
    assert found["flips"] is None
    assert found["trials"][0]["runs"][0]["goodput_per_s"] > 0


@pytest.mark.parametrize(
    ("extra", "what"),
    [
        (["--fleet", "ring:3"], "no fleet"),
        (["--fleet", "agg:1000000000"], "not a fleet"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_line(costs, extra, what):
    with pytest.raises(InvalidSettingError, match=what):
        run("simulate", "--calibration", costs, *extra, *FEW)


@pytest.mark.parametrize(
    ("name", "what"),
    [("missing.json", "'missing.json' cannot be read: No such file"), (__file__, "not describe traffic")],
)
def test_a_file_that_is_none_of_traffic_is_refused(costs, name, what):
    with pytest.raises(InvalidSettingError, match=what):
        run("simulate", "--calibration", costs, "--traffic", name)


@pytest.mark.parametrize("command", ["simulate", "advise"])
@pytest.mark.parametrize("left", [{}, {"prefill": COSTS["prefill"]}, {"step": COSTS["step"]}])
def test_a_model_that_costs_nothing_is_not_simulated(tmp_path, command, left):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(left))
    with pytest.raises(InvalidSettingError, match=r"cost nothing in '.*costs\.json'"):
        run(command, "--calibration", str(path), *FEW)


@pytest.mark.parametrize("option", ["--calibration", "--trace", "--traffic"])
def test_what_cannot_be_read_is_named_as_it_was_given(costs, option):
    with pytest.raises(InvalidSettingError, match=r"'\.' cannot be read"):
        run("simulate", "--calibration", costs, option, ".")


def test_a_missing_calibration_is_said(tmp_path):
    with pytest.raises(InvalidSettingError, match="cannot be read"):
        run("advise", "--calibration", str(tmp_path / "none.json"), *FEW)


@pytest.mark.parametrize(
    "extra",
    [
        ["--requests", "10000000", "--images", "10000"],
        ["--text-tokens", "100000000", "--requests", "1000"],
        ["--rate", "1e-6", "--mean-up-s", "1", "--requests", "1000"],
    ],
)
def test_what_would_not_end_is_refused_at_once_with_what_would_do(costs, extra):
    with pytest.raises(InvalidSettingError, match="million pieces of work") as caught:
        run("simulate", "--calibration", costs, *extra)
    assert caught.value.hint


@pytest.mark.parametrize("command", ["simulate", "advise"])
@pytest.mark.parametrize(
    "extra", [["--osl", "1000000000000"], ["--visual-tokens", "1000000000000"], ["--rate", "1e300"], ["--pixels", "0"]]
)
def test_sizes_that_nothing_has_are_no_options(costs, command, extra):
    result = CliRunner().invoke(app, [command, "--calibration", costs, *extra])
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert extra[0] in result.output


def test_a_traffic_file_has_the_same_limits(costs, tmp_path):
    file = tmp_path / "traffic.json"
    for field, value in (("num_requests", 10**12), ("rate_per_s", 1e300), ("classes", [{"text_tokens": 10**12}])):
        file.write_text(json.dumps({field: value}))
        with pytest.raises(InvalidSettingError, match="does not describe traffic"):
            run("simulate", "--calibration", costs, "--traffic", str(file))


def test_a_long_simulation_says_how_far_it_is_and_ends_cleanly_on_an_interruption(costs):
    words = ["simulate", "--calibration", costs, "--fleet", "agg:4", "--requests", "1000000", "--rate", "20"]
    program = "from chiasm.cli import printing; printing._SAY_EVERY_S = 0.0; from chiasm.cli.app import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", program, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            said = process.stderr.readline()
            process.send_signal(signal.SIGINT)
            printed, rest = process.communicate(timeout=60)
        finally:
            process.kill()
    assert re.fullmatch(r"agg x4: [\d,]+ of 1,000,000\n", said)
    assert process.returncode != 0
    assert printed == ""
    assert "Traceback" not in rest


def test_files_that_cannot_be_written_after_all_are_said_in_a_line(costs):
    with pytest.raises(InvalidSettingError, match="'/dev/full' cannot be written: No space left"):
        run("simulate", "--calibration", costs, "--fleet", "agg:1", "--timeline", "/dev/full", *FEW)
    with pytest.raises(InvalidSettingError, match="'/dev/full' cannot be written: No space left"):
        save_calibration(load_calibration(Path(costs)), Path("/dev/full"))


@pytest.mark.parametrize("name", ["./no-model", "/no/model"])
def test_a_model_that_is_not_there_is_no_servers_address(name, tmp_path):
    with pytest.raises(InvalidSettingError, match=f"no model directory '{name}'"):
        run("profile", name, "--out", str(tmp_path / "costs.json"))
