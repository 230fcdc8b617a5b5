"""Adapters at the gateway: who may load them, which name means what, and what the worker is told."""

import asyncio
import json

import pytest
from msgspec.structs import replace

from chiasm.errors import AdapterError
from chiasm.gateway import create_app
from chiasm.protocol.adapters import AdapterInfo, AdapterRef
from chiasm.settings import AdapterSettings, GatewaySettings
from tests.asgi import Call, call
from tests.fakes import FakeIngest, FakeWorker

KEY, ADMIN = "client", "operator"
CHAT = {"messages": [{"role": "user", "content": "hello"}]}


class AdaptableWorker(FakeWorker):
    """Knows folders by what their files hash to."""

    def __init__(self):
        super().__init__()
        self.revisions = {"/srv/a": "a" * 32, "/srv/b": "b" * 32}
        self.unloaded = []

    async def load_adapter(self, load, timeout_s):
        assert timeout_s > 0
        if load.directory not in self.revisions:
            raise AdapterError("The folder is not below one of the allowed roots")
        ref = AdapterRef(name=load.name, revision=self.revisions[load.directory], directory=load.directory)
        return AdapterInfo(ref=ref, rank=4, targets=("q_proj",), num_bytes=1000)

    async def unload_adapter(self, ref, timeout_s):
        assert timeout_s > 0
        self.unloaded.append(ref.revision)


class Server:
    def __init__(self, worker=None, **settings):
        self.worker = worker or AdaptableWorker()
        options = GatewaySettings(**({"api_keys": (KEY,), "admin_keys": (ADMIN,)} | settings))
        self.app = create_app(self.worker, FakeIngest(), options, adapters=AdapterSettings(max_loaded=2))

    async def call(self, method, path, body=None, key=ADMIN):
        headers = (("authorization", f"Bearer {key}"),) if key else ()
        return await call(self.app, path, body, method=method, headers=headers)

    async def load(self, name, path, **more):
        return await self.call("POST", "/admin/adapters", {"name": name, "path": path} | more)

    async def names(self):
        return [one["id"] for one in (await self.call("GET", "/v1/models", key=KEY)).json["data"]]


@pytest.fixture
def server():
    return Server()


async def test_a_loaded_adapter_is_a_model_of_its_own_until_it_is_unloaded(server):
    view = (await server.load("mine", "/srv/a")).json
    assert (view["name"], view["revision"], view["parent"], view["num_bytes"]) == ("mine", "a" * 32, "fake", 1000)
    assert (await server.call("GET", "/admin/adapters")).json["adapters"] == [view]
    card = (await server.call("GET", "/v1/models/mine", key=KEY)).json
    assert (card["parent"], card["model_revision"]) == ("fake", f"m1+{'a' * 32}")
    answer = (await server.call("POST", "/v1/chat/completions", CHAT | {"model": "mine"}, KEY)).json
    assert answer["model"] == "mine"
    assert server.worker.requests[-1].adapter.revision == "a" * 32
    answer = (await server.call("POST", "/v1/chat/completions", CHAT | {"model": "fake"}, KEY)).json
    assert (answer["model"], server.worker.requests[-1].adapter) == ("fake", None)
    assert (await server.call("DELETE", "/admin/adapters/mine")).json == {"unloaded": "mine", "revision": "a" * 32}
    assert (await server.names(), server.worker.unloaded) == (["fake"], ["a" * 32])
    assert (await server.call("DELETE", "/admin/adapters/mine")).status == 404


async def test_an_unknown_name_is_not_found(server):
    gone = await server.call("POST", "/v1/chat/completions", CHAT | {"model": "mine"}, KEY)
    assert (gone.status, gone.json["error"]["code"], gone.json["error"]["param"]) == (404, "model_not_found", "/model")
    assert not server.worker.requests


@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("POST", ""), ("DELETE", "/mine")])
async def test_only_operators_get_in(server, method, path):
    await server.load("mine", "/srv/a")
    for key, status in ((None, 401), ("wrong", 401), (KEY, 403)):
        assert (await server.call(method, f"/admin/adapters{path}", {}, key)).status == status
    assert await server.names() == ["fake", "mine"]
    closed = Server(admin_keys=())
    assert (await closed.call(method, f"/admin/adapters{path}", {}, KEY)).status in (403, 404, 405)


@pytest.mark.parametrize("path", ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"])
async def test_the_paths_by_which_vllm_loads_adapters_do_not_exist(server, path):
    for key in (KEY, ADMIN):
        answer = await server.call("POST", path, {"lora_name": "x", "lora_path": "/srv/a"}, key)
        assert answer.status in (403, 404)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": "mine"},
        {"name": "../mine", "path": "/srv/a"},
        {"name": "a/b", "path": "/srv/a"},
        {"name": "mine\n", "path": "/srv/a"},
        {"name": "", "path": "/srv/a"},
        {"name": "x" * 65, "path": "/srv/a"},
        {"name": "mine", "path": "/srv/a", "trust": True},
        {"name": "mine", "path": 3},
    ],
)
async def test_malformed_bodies_are_refused(server, body):
    answer = await server.call("POST", "/admin/adapters", body)
    assert (answer.status, answer.json["error"]["code"]) == (400, "invalid_request")
    assert await server.names() == ["fake"]


async def test_a_body_that_does_not_come_is_not_waited_for_without_end():
    headers = (("authorization", f"Bearer {ADMIN}"),)
    call = Call(Server(request_timeout_s=0.05).app, "/admin/adapters", method="POST", headers=headers, pieces=[None])
    async with asyncio.timeout(20):
        await call.run()
    assert (call.status, call.error["code"]) == (504, "deadline_exceeded")


async def test_a_name_keeps_its_revision(server):
    await server.load("mine", "/srv/a")
    assert (await server.load("mine", "/srv/a")).status == 200, "again changes nothing"
    taken = await server.load("mine", "/srv/b")
    assert (taken.status, taken.json["error"]["code"]) == (400, "adapter_refused")
    assert server.worker.unloaded == ["b" * 32]
    assert (await server.load("fake", "/srv/b")).json["error"]["code"] == "adapter_refused"
    assert (await server.load("mine", "/elsewhere")).json["error"]["code"] == "adapter_refused"
    assert (await server.call("GET", "/admin/adapters")).json["adapters"][0]["revision"] == "a" * 32


async def test_the_same_files_in_another_folder_are_read_from_there(server):
    """The folder may have moved: what a worker has dropped must be found where it is now."""
    server.worker.revisions["/srv/moved"] = "a" * 32
    first = (await server.load("mine", "/srv/a")).json
    moved = await server.load("mine", "/srv/moved")
    assert (moved.status, moved.json) == (200, first | {"path": "/srv/moved"})
    await server.call("POST", "/v1/chat/completions", CHAT | {"model": "mine"}, KEY)
    assert server.worker.requests[-1].adapter.directory == "/srv/moved"


async def test_an_adapter_that_is_unloaded_while_its_loading_is_written_down_is_still_answered(server, monkeypatch):
    gateway = server.app.state.gateway
    record = gateway.audit.record

    def unload_meanwhile(act, what):
        record(act, what)
        if act == "loaded_adapter":
            gateway.adapters._by_name.clear()

    monkeypatch.setattr(gateway.audit, "record", unload_meanwhile)
    assert (await server.load("mine", "/srv/a")).status == 200


async def test_files_under_two_names_stay_until_both_are_gone(server):
    await server.load("one", "/srv/a")
    await server.load("two", "/srv/a")
    assert (await server.load("three", "/srv/b")).status == 429, "max_loaded"
    await server.call("DELETE", "/admin/adapters/one")
    assert server.worker.unloaded == []
    await server.call("DELETE", "/admin/adapters/two")
    assert server.worker.unloaded == ["a" * 32]


async def test_acts_are_written_down_with_names_and_revisions(tmp_path):
    path = tmp_path / "audit.jsonl"
    server = Server(audit_file=str(path))
    await server.load("mine", "/srv/a")
    await server.call("DELETE", "/admin/adapters/mine")
    server.app.state.gateway.audit.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["act"] for line in lines] == [
        "request",
        "load_adapter",
        "loaded_adapter",
        "response",
        "request",
        "response",
    ]
    assert (lines[1]["adapter"], lines[2]["revision"]) == ("mine", "a" * 32)
    assert lines[4]["path"] == "/admin/adapters/mine"
    assert ADMIN not in path.read_text()


async def test_an_engine_without_adapters_says_so():
    answer = await Server(FakeWorker()).load("mine", "/srv/a")
    assert (answer.status, answer.json["error"]["code"]) == (400, "unsupported_feature")


async def test_adapters_of_the_settings_are_there_from_the_start(server):
    worker = server.worker
    worker.info = replace(worker.info, model="base")
    await server.app.state.gateway.adapters.preload(AdapterSettings(preload=("mine=/srv/a", "other=/srv/b")))
    assert await server.names() == ["base", "mine", "other"]
