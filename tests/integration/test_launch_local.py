"""Composition: what is started, what is closed when something fails, what the errors say."""

import json
import socket
import urllib.error
import urllib.request

import pytest

from chiasm.errors import EngineStartError, InvalidSettingError, MissingExtraError
from chiasm.launch import engine, local
from chiasm.launch.local import LocalServer, background_server
from chiasm.launch.server import bind
from chiasm.settings import resolve
from tests.fakes import FakeIngest, FakeWorker


def settings(*overrides):
    return resolve(environment={}, overrides=["gateway.port=0", *overrides]).settings


def nothing(what, share):
    """Progress nobody looks at."""


@pytest.fixture
def worker(monkeypatch):
    made = FakeWorker()
    monkeypatch.setattr(local, "start_worker", lambda settings, progress: (made, None))
    monkeypatch.setattr(local, "MediaIngest", lambda settings, preparer: FakeIngest())
    return made


def test_a_server_of_ones_own(worker):
    with background_server(settings(), nothing) as server:
        assert (server.model, server.takes_images) == ("fake", True)
        body = json.dumps({"messages": [{"role": "user", "content": "a b"}]}).encode()
        with urllib.request.urlopen(f"{server.address}/v1/chat/completions", body, timeout=10) as response:
            assert json.load(response)["choices"][0]["message"]["content"] == "a b"
        assert worker.is_healthy
    assert not worker.is_healthy
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{server.address}/health", timeout=5)


def test_it_stops_also_when_the_block_fails(worker):
    def use():
        with background_server(settings(), nothing):
            raise KeyError("x")

    with pytest.raises(KeyError):
        use()
    assert not worker.is_healthy


def test_a_taken_port_is_found_before_a_model_is_loaded(monkeypatch):
    monkeypatch.setattr(local, "start_worker", lambda settings, progress: pytest.fail("loaded"))
    with bind("127.0.0.1", 0) as listener:
        listener.listen()
        with pytest.raises(InvalidSettingError):
            LocalServer(settings(f"gateway.port={listener.getsockname()[1]}"), nothing)


def test_a_model_that_fails_to_load_gives_the_port_back(monkeypatch):
    ports = []

    def fail(settings_, progress):
        raise EngineStartError("no")

    def spying_bind(host, port):
        listener = bind(host, port)
        ports.append(listener.getsockname()[1])
        return listener

    monkeypatch.setattr(local, "start_worker", fail)
    monkeypatch.setattr(local, "bind", spying_bind)
    with pytest.raises(EngineStartError):
        LocalServer(settings(), nothing)
    with socket.socket() as again:
        again.bind(("127.0.0.1", ports[0]))


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_missing_packages_are_named(monkeypatch, missing):
    monkeypatch.setattr(engine, "find_spec", lambda name: None if name == missing else object())
    with pytest.raises(MissingExtraError) as caught:
        LocalServer(settings(), nothing)
    assert "chiasm[embedded]" in caught.value.hint


def test_a_directory_that_is_no_model_is_refused_before_torch_is_loaded(tmp_path):
    steps = []
    with pytest.raises(EngineStartError, match=r"config\.json"):
        LocalServer(settings(f"engine.model={tmp_path}"), lambda what, share: steps.append(what))
    assert steps == []
