"""`chiasm serve`: restart, welcome, settings."""

import json
import os
import sys

import pytest
from typer.testing import CliRunner

from chiasm.cli import process
from chiasm.cli import serve as command
from chiasm.cli.app import app
from chiasm.errors import InvalidSettingError
from chiasm.settings.process import ALLOCATOR_VARIABLES, THREAD_VARIABLES


class FakeServer:
    address = "http://127.0.0.1:8123"
    addresses = (address,)
    model = "m"
    tasks = ()


@pytest.fixture
def started(monkeypatch):
    """Settings of servers that were started; each is ready at once."""
    seen = []

    def serve(settings, progress, on_ready, inheritance=None):
        progress("Loading", 0.5)
        assert inheritance is None
        seen.append(settings)
        on_ready(FakeServer())

    monkeypatch.setattr(command, "restart_for_arithmetic", lambda: None)
    monkeypatch.setattr("chiasm.launch.local.serve", serve)
    monkeypatch.setattr("chiasm.observability.logs.configure_logging", lambda *_: None)
    return seen


def test_options_become_settings(started):
    words = [
        "serve",
        "/models/x",
        "--host",
        "::1",
        "--port",
        "0",
        "--log-level",
        "debug",
        "--set",
        "engine.max_running=3",
    ]
    assert CliRunner().invoke(app, words).exit_code == 0
    (settings,) = started
    assert (settings.engine.model, settings.gateway.host, settings.gateway.port) == ("/models/x", "::1", 0)
    assert (settings.observability.log_level, settings.engine.max_running) == ("debug", 3)


def test_adapters_are_named_with_their_folders(started):
    words = ["serve", "--adapter", "one=/srv/one", "--adapter", "two=/srv/two"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert started[0].adapters.preload == ("one=/srv/one", "two=/srv/two")


@pytest.mark.parametrize(
    ("text", "workers", "file"), [("3", 3, None), ("workers.toml", 2, "workers.toml"), ("0x2", 2, "0x2"), ("²", 2, "²")]
)
def test_workers_are_a_number_or_a_file(started, text, workers, file):
    assert CliRunner().invoke(app, ["serve", "--topology", "agg", "--workers", text]).exit_code == 0
    assert (started[0].routing.workers, started[0].vllm.workers_file) == (workers, file or "")


def test_fewer_than_no_workers_is_a_wrong_number_and_no_file(started):
    failure = CliRunner().invoke(app, ["serve", "--topology", "agg", "--workers", "-1"]).exception
    assert isinstance(failure, InvalidSettingError)
    assert "routing.workers = -1" in failure.message


def test_a_cluster_is_served_by_what_places_servers_there(started, monkeypatch):
    placed = []
    monkeypatch.setattr("chiasm.launch.cluster.serve.serve_on_cluster", lambda settings, *_: placed.append(settings))
    assert CliRunner().invoke(app, ["serve", "--topology", "e-p-d", "--cluster", "ray://10.0.0.1:6379"]).exit_code == 0
    assert [one.cluster.address for one in placed] == ["ray://10.0.0.1:6379"]
    assert not started


def test_the_welcome_says_where_and_what_next(started):
    shown = CliRunner().invoke(app, ["serve"]).stdout
    assert "m is served on http://127.0.0.1:8123" in shown
    assert 'chiasm ask --server http://127.0.0.1:8123 picture.png "What is in the picture?"' in shown
    assert "Bearer" not in shown
    assert "secret" not in CliRunner().invoke(app, ["serve", "--set", "gateway.api_keys=['secret']"]).stdout
    assert "Bearer KEY" in CliRunner().invoke(app, ["serve", "--set", "gateway.api_keys=['secret']"]).stdout


def test_several_gateways_are_all_named(started, monkeypatch):
    more = ("http://127.0.0.1:8123", "http://10.0.0.6:8124")
    assert "addresses" not in json.loads(CliRunner().invoke(app, ["serve", "--json"]).stdout)
    monkeypatch.setattr(FakeServer, "addresses", more)
    assert "and on http://10.0.0.6:8124" in CliRunner().invoke(app, ["serve"]).stdout
    assert json.loads(CliRunner().invoke(app, ["serve", "--json"]).stdout)["addresses"] == list(more)


def test_the_welcome_of_a_pooling_model_has_an_example_for_each_task(started, monkeypatch):
    monkeypatch.setattr(FakeServer, "tasks", ("embed", "score"))
    shown = CliRunner().invoke(app, ["serve"]).stdout
    assert "/v1/embeddings" in shown
    assert "/rerank" in shown
    assert "chiasm ask" not in shown


def test_json_is_one_object(started):
    shown = json.loads(CliRunner().invoke(app, ["serve", "--json"]).stdout)
    assert (shown["address"], shown["model"]) == ("http://127.0.0.1:8123", "m")


def test_the_process_is_started_again_once_with_the_variables_of_c_libraries(monkeypatch):
    calls = []
    monkeypatch.setattr(os, "execve", lambda *arguments: calls.append(arguments))
    for name in ALLOCATOR_VARIABLES | THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    process.restart_for_arithmetic()
    ((program, words, environment),) = calls
    assert (program, words) == (sys.executable, [sys.executable, *sys.orig_argv[1:]])
    assert (ALLOCATOR_VARIABLES | THREAD_VARIABLES).items() <= environment.items()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    process.restart_for_arithmetic()
    assert len(calls) == 1
