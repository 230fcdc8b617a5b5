"""What is asked with GET, and what HTTP itself refuses."""

import pytest
from starlette.routing import Route

from chiasm import __version__
from chiasm.gateway import create_app
from chiasm.gateway.console.routes import console_paths
from chiasm.gateway.routes.openapi import DESCRIBED_PATHS, document
from chiasm.protocol.contract import CONTRACT_VERSION
from chiasm.settings import GatewaySettings
from tests.asgi import call
from tests.fakes import FakeIngest, FakeWorker

ASK = {"messages": [{"role": "user", "content": "a b"}]}


@pytest.fixture
def worker():
    return FakeWorker()


@pytest.fixture
def app(worker):
    return create_app(worker, FakeIngest(), GatewaySettings(max_receipts=3))


async def test_models(app):
    listed = await call(app, "/v1/models")
    assert [card["id"] for card in listed.json["data"]] == ["fake"]
    card = (await call(app, "/v1/models/fake")).json
    assert card == listed.json["data"][0]
    assert (card["object"], card["created"], card["max_model_len"], card["takes_images"]) == (
        "model", 1_700_000_000, 4096, True,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["other", "", "fake/x", "../fake"])
async def test_other_models_are_not_found(app, name):
    made = await call(app, f"/v1/models/{name}")
    assert (made.status, made.error["code"]) == (404, "model_not_found")


async def test_health_follows_the_engine(app, worker):
    assert (await call(app, "/health")).json == {"status": "ok"}
    assert (await call(app, "/ready")).json == {"status": "ready"}
    worker.is_healthy = False
    assert (await call(app, "/health")).status == 503
    assert (await call(app, "/ready")).json == {"status": "engine_dead"}


async def test_readiness_ends_with_draining(app):
    app.state.gateway.drain()
    made = await call(app, "/ready")
    assert (made.status, made.json) == (503, {"status": "draining"})


async def test_version(app):
    assert (await call(app, "/version")).json == {"version": __version__, "contract": CONTRACT_VERSION, "model": "fake"}


async def test_metrics_count_what_was_done(app):
    await call(app, "/v1/chat/completions", ASK)
    await call(app, "/v1/chat/completions", {**ASK, "model": "other"})
    await call(app, "/v1/completions", {"prompt": "a"})
    text = (await call(app, "/metrics")).body.decode()
    for line in (
        'chiasm_requests_received_total{endpoint="chat"} 2.0',
        'chiasm_requests_total{endpoint="chat",outcome="finished"} 1.0',
        'chiasm_requests_total{endpoint="chat",outcome="model_not_found"} 1.0',
        'chiasm_requests_total{endpoint="completions",outcome="finished"} 1.0',
        'chiasm_ttft_seconds_count{endpoint="chat"} 1.0',
        'chiasm_e2e_seconds_count{endpoint="chat"} 1.0',
        'chiasm_stage_seconds_count{stage="prefill"} 2.0',
        "chiasm_prompt_tokens_total 20.0",
        "chiasm_output_tokens_total 3.0",
        "chiasm_requests_open 0.0",
        "chiasm_ready 1.0",
        "chiasm_worker_open_requests 0.0",
        "chiasm_worker_finished_requests_total 2.0",
    ):
        assert line in text.splitlines()


async def test_receipts_newest_first(app):
    for _ in range(4):
        last = await call(app, "/v1/chat/completions", ASK)
    listed = (await call(app, "/debug/receipts")).json["receipts"]
    assert len(listed) == 3
    assert listed[0]["request_id"] == last.json["id"]
    assert (await call(app, f"/debug/receipts/{last.json['id']}")).json == listed[0]


async def test_a_forgotten_receipt(app):
    made = await call(app, "/debug/receipts/nobody")
    assert (made.status, made.error["code"]) == (404, "not_found")


@pytest.mark.parametrize(("query", "status"), [("limit=1", 200), ("limit=0", 400), ("limit=4", 400), ("limit=x", 400),
                                               ("limit=", 400), ("limit=-1", 400), ("limit=" + "9" * 99, 400),
                                               ("limit=%C2%B2", 400)])  # fmt: skip
async def test_the_number_of_receipts(app, query, status):
    from tests.asgi import Call

    made = Call(app, "/debug/receipts")
    made.scope["query_string"] = query.encode()
    assert (await made.run()).status == status


@pytest.mark.parametrize("path", ["/", "/nowhere", "/v1", "/v1/chat/completions/", "/v1/chat//completions", "/HEALTH"])
async def test_other_paths_are_not_found(app, path):
    made = await call(app, path)
    assert (made.status, made.error["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/chat/completions"), ("PUT", "/v1/completions"), ("POST", "/health")]
)
async def test_other_methods_are_refused(app, method, path):
    made = await call(app, path, method=method)
    assert (made.status, made.error["code"]) == (405, "method_not_allowed")
    assert made.headers["allow"]


async def test_a_fault_in_a_simple_route_is_a_500_in_the_same_form(app, worker):
    worker.stats = lambda: 1 / 0
    from tests.asgi import Call

    made = Call(app, "/health")
    with pytest.raises(ZeroDivisionError):  # Starlette raises it again for the server's log
        await made.run()
    assert (made.status, made.error["code"]) == (500, "internal_error")


def test_openapi_describes_every_route(app):
    paths = {route.path.replace(":path", "") for route in app.routes if isinstance(route, Route)}
    assert paths - console_paths() == set(DESCRIBED_PATHS) == set(document()["paths"])


async def test_openapi_is_whole(app):
    described = (await call(app, "/openapi.json")).json
    schemas = described["components"]["schemas"]
    assert "temperature" in schemas["ChatCompletionRequest"]["properties"]
    assert schemas["ChatCompletionRequest"]["additionalProperties"] is False

    def references(node):
        if isinstance(node, dict):
            yield from ([node["$ref"]] if "$ref" in node else [])
            node = list(node.values())
        if isinstance(node, list):
            for child in node:
                yield from references(child)

    assert {ref.removeprefix("#/components/schemas/") for ref in references(described)} <= set(schemas)
