"""Adapters of real servers: the command line, a base that stays itself, and workers that come back without them."""

import json
import os
import signal
import urllib.error
import urllib.request

import pytest
import torch
from transformers import AutoModelForImageTextToText
from typer.testing import CliRunner

from chiasm.cli.app import app
from chiasm.errors import AdapterError, ModelNotFoundError, PermissionDeniedError
from chiasm.launch.local import background_server
from chiasm.launch.model import model_directory
from chiasm.settings import resolve
from tests.e2e.served import ask, picture
from tests.numeric.adapters import write_adapter

pytestmark = pytest.mark.timeout(240)
PARTS = (picture("red", shift=3), "What is it?")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Folders of two adapters of the packaged model."""
    made = tmp_path_factory.mktemp("adapters")
    model = AutoModelForImageTextToText.from_pretrained(model_directory(""), dtype=torch.float32)
    for seed, name in enumerate(("one", "two")):
        write_adapter(model, made / name, seed, rank=8)
    return made


def served(root, **more):
    values = {
        "gateway.port": 0,
        "gateway.api_keys": ["client"],
        "gateway.admin_keys": ["operator"],
        "adapters.roots": [str(root)],
    }
    return background_server(resolve(values=values | more).settings, lambda what, share: None)


def said(server, model, parts=PARTS):
    body = json.dumps({"model": model, "messages": ask(*parts), "max_tokens": 8, "temperature": 0, "n": 1}).encode()
    headers = {"Authorization": "Bearer client", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.address}/v1/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        found = json.load(answer)
    assert found["model"] == model
    return found["choices"][0]["message"]["content"]


def command(server, *line, key="operator"):
    result = CliRunner().invoke(app, ["adapters", *line, "--server", server.address, "--api-key", key])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def expected(root):
    """What a whole worker says, by model."""
    with served(root, **{"adapters.preload": [f"one={root / 'one'}", f"two={root / 'two'}"]}) as server:
        found = {model: said(server, model) for model in ("tiny_vlm", "one", "two")}
        assert len(set(found.values())) == 3
        listed = command(server, "list")
        assert all(word in listed for word in ("one", "two", "q_proj", "MiB"))
    return found


def test_the_command_line_loads_lists_and_unloads(root, expected):
    with served(root) as server:
        assert json.loads(command(server, "list", "--json")) == []
        with pytest.raises(urllib.error.HTTPError, match="404"):
            said(server, "mine")
        assert "is served" in command(server, "load", "mine", str(root / "one"))
        assert said(server, "mine") == expected["one"]
        assert said(server, "tiny_vlm") == expected["tiny_vlm"]
        (view,) = json.loads(command(server, "list", "--json"))
        assert (view["name"], view["parent"], view["rank"]) == ("mine", "tiny_vlm", 8)
        with pytest.raises(AdapterError, match="allowed roots"):
            command(server, "load", "other", "/etc")
        with pytest.raises(PermissionDeniedError):
            command(server, "load", "other", str(root / "two"), key="client")
        assert "unloaded" in command(server, "unload", "mine")
        with pytest.raises(ModelNotFoundError):
            command(server, "unload", "mine")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            said(server, "mine")


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["agg", "e-pd", "e-p-d"])
def test_processes_say_the_same_also_when_they_come_back(root, expected, topology):
    with served(root, **{"routing.topology": topology, "routing.workers": 1, "engine.threads": 1}) as server:
        command(server, "load", "one", str(root / "one"))
        for model in ("one", "tiny_vlm", "one"):
            assert said(server, model) == expected[model]
        if topology != "e-pd":
            return
        processes = server._backend.supervisor._processes
        victim = next(one for name, one in processes.items() if name.startswith("prefill"))
        os.kill(victim.pid, signal.SIGKILL)
        assert said(server, "one") == expected["one"], "the new process reads the files when it needs them"
