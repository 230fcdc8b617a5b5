"""Adapters on real vLLM servers, whole and split, loaded while they run, against the embedded engine."""

import json

import pytest

from chiasm.launch.vllm.process import _UnixConnection
from tests.vllm.adapters import operate, options, said
from tests.vllm.crews import MARKS, OPERATED
from tests.vllm.gateways import PROMPTS, gateway

pytestmark = MARKS


@pytest.fixture(scope="module")
def root(adapters):
    return adapters


@pytest.fixture(scope="module")
def expected(root):
    """What the embedded engine says, by model and prompt."""
    with gateway(OPERATED, *options(root)) as server:
        assert operate(server, "POST", body={"name": "later", "path": f"{root}/later"})[0] == 200
        models = ("tiny_vlm", "first", "later")
        found = {(model, name): said(server, PROMPTS[name], model) for model in models for name in ("text", "two")}
    assert len(set(found.values())) == len(found)
    return found


@pytest.fixture(scope="module")
def served(root):
    own = ("engine.kind=vllm", "routing.topology=e-pd", "routing.local_encode=never", OPERATED)
    with gateway(*own, *options(root)) as server:
        yield server


def test_adapters_say_on_vllm_what_they_say_on_the_embedded_engine(served, root, expected):
    assert operate(served, "POST", body={"name": "later", "path": f"{root}/later"})[0] == 200
    for (model, name), text in expected.items():
        assert said(served, PROMPTS[name], model) == text, (model, name)
    assert operate(served, "DELETE", "/later")[0] == 200
    assert served.chat(PROMPTS["text"], model="later")[0] == 404
    assert said(served, PROMPTS["text"], "first") == expected["first", "text"]
    assert operate(served, "POST", body={"name": "again", "path": f"{root}/later"})[0] == 200
    assert said(served, PROMPTS["two"], "again") == expected["later", "two"]


def test_clients_cannot_load_anything(served, root):
    body = {"lora_name": "mine", "lora_path": f"{root}/later"}
    for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        assert served.post(path, body)[0] == 404
    assert operate(served, "POST", body={"name": "mine", "path": "/etc"})[1]["error"]["code"] == "adapter_refused"
    process = served.backend.supervisor._processes["prefill-0"]
    connection = _UnixConnection(process.address.removeprefix("unix:"), 60)
    connection.request("POST", "/v1/load_lora_adapter", json.dumps(body), {"content-type": "application/json"})
    assert connection.getresponse().status == 401, "not without the server's key either"
    connection.close()
