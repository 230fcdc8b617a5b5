"""The command itself: what it lists, how it fails, what it loads."""

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chiasm import __version__
from chiasm.cli import app as command
from chiasm.errors import EngineStartError, InvalidSettingError

COMMANDS = ("serve", "ask", "tokens", "doctor", "version", "config", "media")


def run(*words):
    return CliRunner().invoke(command.app, list(words))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name):
    assert name in run("--help").stdout
    shown = run(name, "--help")
    assert shown.exit_code == 0
    assert "chiasm" in shown.stdout


def test_help_teaches_with_examples():
    assert 'chiasm ask picture.png "What is this?"' in run("--help").stdout
    assert "--set engine.max_running=8" in run("serve", "--help").stdout
    assert '"What changed?" --stages' in run("ask", "--help").stdout


def test_without_arguments_it_shows_help():
    assert "First steps" in run().stdout


def test_version():
    assert run("version").stdout == f"{__version__}\n"
    assert __version__ in run("version", "--json").stdout
    shown = run("--version")
    assert (shown.exit_code, shown.stdout) == (0, f"{__version__}\n")


@pytest.mark.parametrize(
    ("error", "status"),
    [(InvalidSettingError("no such port", hint="take another"), 2), (EngineStartError("no such model"), 1)],
)
def test_expected_failures_are_a_line_a_hint_and_a_status(monkeypatch, capsys, error, status):
    def fail():
        raise error

    monkeypatch.setattr(command, "app", fail)
    with pytest.raises(SystemExit) as caught:
        command.main()
    assert caught.value.code == status
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [f"Error: {error.message}"] + ([f"  {error.hint}"] if error.hint else [])


def run_main(monkeypatch, capsys, *words):
    """Status, standard output and standard error of a command line."""
    monkeypatch.setattr(sys, "argv", ["chiasm", *words])
    with pytest.raises(SystemExit) as caught:
        command.main()
    return caught.value.code, *capsys.readouterr()


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [
        (["config", "show", "--json", "--set", "gateway.prot=1"], 2, "unknown_setting"),
        (["keys", "list", "--json", "--file", "/nowhere/keys.toml"], 2, "invalid_setting"),
        (["fleet", "list", "--json", "--server", "http://127.0.0.1:1"], 1, "engine_error"),
        (["fleet", "restart", "--json"], 2, "invalid_setting"),
        (["simulate", "--json", "--rate", "inf"], 2, "invalid_setting"),
        (["nope", "--json"], 2, "invalid_setting"),
    ],
)
def test_programs_get_a_failure_as_one_line_with_its_code(monkeypatch, capsys, words, status, code):
    ended, out, err = run_main(monkeypatch, capsys, *words)
    assert ended == status
    told = json.loads(out)["error"]
    assert (told["code"], out.count("\n")) == (code, 1)
    assert told["message"]
    assert err


def test_people_get_a_failure_on_standard_error_only(monkeypatch, capsys):
    assert run_main(monkeypatch, capsys, "config", "show", "--set", "gateway.prot=1")[:2] == (2, "")


def test_a_reader_who_has_left_is_no_further_failure():
    done = subprocess.run(
        ["/bin/sh", "-c", f"{sys.executable} -m chiasm config show --json --set x=1 | true"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


@pytest.mark.parametrize(
    "error", [RuntimeError("can't start new thread"), BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")]
)
def test_threads_and_processes_that_the_system_refuses_are_a_line_with_the_fix(monkeypatch, capsys, error):
    def fail():
        raise error

    monkeypatch.setattr(command, "app", fail)
    with pytest.raises(SystemExit) as caught:
        command.main()
    assert caught.value.code == 1
    line, hint = capsys.readouterr().err.splitlines()
    assert line == "Error: The system starts no further thread or process"
    assert "ulimit -u" in hint


@pytest.mark.parametrize("error", [RuntimeError("broken"), OSError(errno.EIO, "Input/output error")])
def test_other_failures_are_not_hidden(monkeypatch, error):
    def fail():
        raise error

    monkeypatch.setattr(command, "app", fail)
    with pytest.raises(type(error)):
        command.main()


@pytest.mark.parametrize(
    "words",
    [
        ["serve", "--set", "gateway.prot=1"],
        ["config", "show", "--set", "x=1"],
        ["serve", "--nope"],
        ["doctor", "--port", "x"],
        ["ask"],
    ],
)
def test_usage_and_settings_errors_have_status_2(words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["chiasm", *words])
    monkeypatch.setattr("chiasm.cli.serve.restart_for_arithmetic", lambda: None)
    with pytest.raises(SystemExit) as caught:
        command.main()
    assert caught.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["version"], ["config", "show"], ["config", "show", "--json"], ["deploy", "compose"]]
)
def test_a_full_disk_is_one_line(words):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "chiasm", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "Error: The output cannot be written: No space left on device\n")


def test_a_file_that_cannot_be_written_is_a_wrong_setting():
    assert isinstance(run("deploy", "compose", "--output", "/dev/full").exception, InvalidSettingError)


def test_the_command_line_loads_no_engine_and_no_server():
    program = (
        "import sys; import chiasm.cli.app; "
        "print([n for n in ('torch', 'transformers', 'numpy', 'uvicorn', 'starlette', 'aiohttp') if n in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert shown.stdout == "[]\n"
