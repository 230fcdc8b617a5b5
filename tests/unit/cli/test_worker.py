"""`chiasm worker`: options, refusals, what it says when it is ready."""

import json

import pytest
from typer.testing import CliRunner

from chiasm.cli import worker as command
from chiasm.cli.app import app
from chiasm.errors import InvalidSettingError


@pytest.fixture
def started(monkeypatch):
    """Workers that were started; each is ready at once."""
    seen = []

    def serve_worker(settings, spec, progress, on_ready):
        progress("Loading", 0.5)
        seen.append((settings, spec))
        on_ready(spec.address)

    monkeypatch.setattr(command, "restart_for_arithmetic", lambda: None)
    monkeypatch.setattr("chiasm.launch.worker.serve_worker", serve_worker)
    monkeypatch.setattr("chiasm.observability.logs.configure_logging", lambda *_: None)
    return seen


def test_options_become_a_worker(started):
    words = ["worker", "/models/x", "--role", "decode", "--role", "prefill", "--name", "w", "--address", "unix:/run/w"]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0
    assert "Worker w (prefill, decode) listens on unix:/run/w" in shown.stdout
    ((settings, spec),) = started
    assert settings.engine.model == "/models/x"
    assert (spec.name, spec.roles, spec.address) == ("w", ("prefill", "decode"), "unix:/run/w")


def test_without_roles_it_has_all(started, tmp_path):
    tmp_path.chmod(0o700)
    words = ["worker", "--json", "--set", f"routing.directory={tmp_path}"]
    shown = json.loads(CliRunner().invoke(app, words).stdout)
    assert shown["roles"] == ["encode", "prefill", "decode"]
    assert shown["address"] == f"unix:{tmp_path}/{shown['name']}.sock"


@pytest.mark.parametrize("words", [["--role", "paint"], []], ids=["no such role", "no address"])
def test_what_cannot_be_is_refused_before_anything_is_loaded(started, words):
    assert isinstance(CliRunner().invoke(app, ["worker", *words]).exception, InvalidSettingError)
    assert started == []
