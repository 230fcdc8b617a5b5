"""`chiasm fleet restart --gateway`: each look at the server is a line of its audit log, so there are few."""

import json

import pytest
from typer.testing import CliRunner

from chiasm.cli import fleet
from chiasm.cli.app import app
from chiasm.errors import EngineStartError


def state(pid, name, error=""):
    return {"pid": pid, "state": name, "error": error}


@pytest.fixture
def server(monkeypatch):
    """What was asked; the answers are put behind `answers`."""
    asked, answers = [], []

    def call(server, api_key, method, path, *, timeout_s):
        asked.append((method, path))
        return answers.pop(0)

    monkeypatch.setattr("chiasm.cli.client.call", call)
    monkeypatch.setattr(fleet, "_LOOK_INTERVAL_S", 0.0)
    return asked, answers


def test_it_asks_once_for_each_change(server):
    asked, answers = server
    answers += [state(1, "starting"), state(1, "leaving"), state(2, "serving")]
    result = CliRunner().invoke(app, ["fleet", "restart", "--gateway", "--json"])
    assert json.loads(result.stdout)["pid"] == 2
    assert asked == [
        ("POST", "/admin/gateway/restart"),
        ("GET", "/admin/gateway?while=starting"),
        ("GET", "/admin/gateway"),
    ]


def test_it_says_why_the_old_one_stays(server):
    _, answers = server
    answers += [state(1, "starting"), state(1, "serving", "no room")]
    result = CliRunner().invoke(app, ["fleet", "restart", "--gateway"])
    assert isinstance(result.exception, EngineStartError)
    assert result.exception.message == "no room"
