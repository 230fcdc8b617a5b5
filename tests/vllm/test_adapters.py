"""Adapters on real vLLM servers, whole and split, loaded while they run, against the embedded engine."""

import json
import urllib.error
import urllib.request

import pytest
import torch
from transformers import AutoModelForImageTextToText

from chiasm.launch.vllm.process import _UnixConnection
from tests.numeric.adapters import write_adapter
from tests.vllm.crews import MARKS
from tests.vllm.gateways import PROMPTS, gateway
from tests.vllm.servers import MODEL

pytestmark = MARKS
ADMIN = 'gateway.admin_keys=["operator"]'


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Folders of adapters of the packaged model: 'first' and 'later'."""
    made = tmp_path_factory.mktemp("adapters")
    model = AutoModelForImageTextToText.from_pretrained(MODEL, dtype=torch.float32)
    for seed, name in enumerate(("first", "later")):
        write_adapter(model, made / name, seed, rank=8)
    return made


def options(root):
    return (ADMIN, f'adapters.roots=["{root}"]', f'adapters.preload=["first={root}/first"]', "adapters.max_rank=8")


def operate(server, method, path="", body=None):
    """Status and answer of an operator's call."""
    headers = {"content-type": "application/json", "authorization": "Bearer operator"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{server.address}/admin/adapters{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def said(server, parts, model):
    status, body = server.chat(parts, model=model, max_tokens=12)
    assert status == 200, body
    assert body["model"] == model
    return body["choices"][0]["message"]["content"]


@pytest.fixture(scope="module")
def expected(root):
    """What the embedded engine says, by model and prompt."""
    with gateway(*options(root)) as server:
        assert operate(server, "POST", body={"name": "later", "path": f"{root}/later"})[0] == 200
        models = ("tiny_vlm", "first", "later")
        found = {(model, name): said(server, PROMPTS[name], model) for model in models for name in ("text", "two")}
    assert len(set(found.values())) == len(found)
    return found


@pytest.fixture(scope="module")
def served(root):
    with gateway("engine.kind=vllm", "routing.topology=e-pd", "routing.local_encode=never", *options(root)) as server:
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
