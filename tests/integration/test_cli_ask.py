"""`chiasm ask` through a real server around a scripted worker: its own, and a running one."""

import base64
import json
import re

import pytest
from typer.testing import CliRunner

from chiasm.cli.app import app
from chiasm.errors import ChiasmError
from chiasm.launch import local
from chiasm.launch.local import background_server
from chiasm.settings import resolve
from tests.fakes import FakeIngest, FakeWorker, by_prompt


@pytest.fixture
def engine(monkeypatch):
    """The worker and the ingest that servers of this process get."""
    worker, ingest = FakeWorker(by_prompt()), FakeIngest()
    monkeypatch.setattr(local, "start_worker", lambda settings, progress: (worker, None))
    monkeypatch.setattr(local, "MediaIngest", lambda settings, preparer: ingest)
    monkeypatch.setattr("chiasm.observability.logs.configure_logging", lambda level: None)
    worker.ingest = ingest
    return worker


@pytest.fixture
def server(engine):
    settings = resolve(environment={}, overrides=["gateway.port=0", "gateway.api_keys=['k']"]).settings
    with background_server(settings, lambda what, share: None) as running:
        yield running


def ask(*words):
    return CliRunner().invoke(app, ["ask", *words])


def test_an_engine_of_its_own_answers(engine, tmp_path):
    (tmp_path / "a.png").write_bytes(b"aa")
    (tmp_path / "b.jpg").write_bytes(b"bb")
    shown = ask(str(tmp_path / "a.png"), str(tmp_path / "b.jpg"), "what is this")
    assert (shown.exit_code, shown.stdout) == (0, "what is this\n")
    (request,) = engine.requests
    urls = [item.source.data.decode() for item in request.items]
    assert urls == [
        "data:image/png;base64," + base64.b64encode(b"aa").decode(),
        "data:image/jpeg;base64," + base64.b64encode(b"bb").decode(),
    ]
    assert request.sampling.temperature == 0
    assert not engine.is_healthy, "the engine is closed in the end"


def test_a_running_server_answers(server, engine):
    shown = ask("--server", server.address, "--api-key", "k", "--max-tokens", "2", "--temperature", "0.5", "a b c")
    assert (shown.exit_code, shown.stdout) == (0, "a b\n")
    assert engine.requests[0].sampling.temperature == 0.5


def test_json(server):
    shown = json.loads(ask("--server", server.address, "--api-key", "k", "--json", "a b").stdout)
    assert shown["text"] == "a b"
    assert shown["usage"]["completion_tokens"] == 2
    assert shown["receipt"]["outcome"] == "finished"


def test_stages_add_up_to_the_time_to_first_token(server):
    shown = ask("--server", server.address, "--api-key", "k", "--stages", "a b").stdout
    ms = {name: float(value) for name, value in re.findall(r"^ (\w[\w ]*?) +(\d+\.\d\d)", shown, flags=re.MULTILINE)}
    assert {"queue", "prompt", "prefill", "first_token", "unaccounted", "decode"} <= set(ms)
    total = ms.pop("time to first token")
    del ms["decode"]
    assert sum(ms.values()) == pytest.approx(total, abs=0.05)


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--model", "other", "a"], "not served here"), (["fail 0"], "told to fail"), (["fail 1 x"], "told to fail")],
)
def test_failures_are_raised_for_the_command_to_report(server, words, message):
    shown = ask("--server", server.address, "--api-key", "k", *words)
    assert isinstance(shown.exception, ChiasmError)
    assert message in shown.exception.message


def test_a_wrong_key(server):
    assert ask("--server", server.address, "a").exception.code == "invalid_api_key"


def test_usage_errors(tmp_path):
    picture = tmp_path / "a.png"
    picture.write_bytes(b"x")
    assert "Add a question" in ask(str(picture)).stderr
    assert "Cannot read" in ask(str(tmp_path / "none.png"), "what").stderr
    assert ask(str(tmp_path), "what").exit_code == 2


def test_hosts_named_on_the_command_line_may_be_fetched(engine, monkeypatch):
    seen = []
    monkeypatch.setattr(local, "MediaIngest", lambda settings, preparer: seen.append(settings) or engine.ingest)
    assert (
        ask(
            "https://pictures.example/a.png", "http://other.example/b.png", "data:image/png;base64,AA", "what"
        ).exit_code
        == 0
    )
    assert seen[0].allowed_domains == ("other.example", "pictures.example")
    assert seen[0].allow_http
    assert ask("what").exit_code == 0
    assert seen[1].allowed_domains == ()
