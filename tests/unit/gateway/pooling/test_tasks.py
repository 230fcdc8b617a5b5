"""Classes, the general endpoint, models that do other things, and requests that end early."""

import asyncio
import base64

import numpy as np
import pytest

from chiasm.asgi.auth import OPEN_PATHS
from chiasm.gateway import create_app
from chiasm.gateway.console.routes import console_paths
from chiasm.settings import GatewaySettings
from tests.asgi import Call, call
from tests.conditions import until
from tests.fakes import FakeIngest, FakeWorker
from tests.pooling_fakes import FakePoolingWorker

BODIES = {
    "/v1/embeddings": {"input": "a"},
    "/v2/embed": {"texts": ["a"]},
    "/score": {"text_1": "a", "text_2": "score 1"},
    "/v1/score": {"text_1": "a", "text_2": "score 1"},
    "/rerank": {"query": "a", "documents": ["score 1"]},
    "/v1/rerank": {"query": "a", "documents": ["score 1"]},
    "/v2/rerank": {"query": "a", "documents": ["score 1"]},
    "/classify": {"input": "a"},
    "/pooling": {"input": "a", "task": "embed"},
}


async def test_classes(app):
    made = await call(app, "/classify", {"input": ["a", "score nan"]})
    first, second = made.json["data"]
    assert (first["label"], first["num_classes"]) == ("positive", 3)
    assert first["probs"] == pytest.approx([0.1, 0.2, 0.7])
    assert (second["label"], second["probs"][2]) == (None, None)


@pytest.mark.parametrize(
    ("task", "shape"), [("embed", [4]), ("classify", [3]), ("token_embed", [2, 4]), ("token_classify", [2, 3])]
)
async def test_tasks(app, task, shape):
    made = await call(app, "/pooling", {"input": "a", "task": task})
    entry = made.json["data"][0]
    assert entry["shape"] == shape
    assert np.array(entry["data"], dtype=object).shape == tuple(shape)
    made = await call(app, "/pooling", {"input": "a", "task": task, "encoding_format": "base64"})
    assert len(base64.b64decode(made.json["data"][0]["data"])) == 4 * np.prod(shape)


async def test_the_models_first_task_is_the_default(app, worker):
    await call(app, "/pooling", {"input": "a"})
    assert worker.pooled[0].task == "embed"


async def test_a_model_that_scores_pairs_has_no_default():
    app = create_app(FakePoolingWorker(("score",)), FakeIngest(), GatewaySettings())
    made = await call(app, "/pooling", {"input": "a"})
    assert (made.status, made.error["code"]) == (400, "unsupported_feature")


async def test_there_must_be_an_input(app):
    assert (await call(app, "/pooling", {"task": "embed"})).error["param"] == "/input"


@pytest.mark.parametrize("path", BODIES)
async def test_a_model_that_generates_says_so(path):
    app = create_app(FakeWorker(), FakeIngest(), GatewaySettings())
    made = await call(app, path, BODIES[path])
    assert (made.status, made.error["code"]) == (400, "unsupported_feature")
    assert "--task" in made.error["hint"]


async def test_the_models_list_says_what_they_do(app):
    assert (await call(app, "/v1/models")).json["data"][0]["tasks"][0] == "embed"
    other = create_app(FakeWorker(), FakeIngest(), GatewaySettings())
    assert (await call(other, "/v1/models")).json["data"][0]["tasks"] == ["generate"]


@pytest.mark.parametrize("path", BODIES)
async def test_a_client_that_leaves_cancels_the_work(app, worker, path):
    body = {
        key: value if key in ("task", "query", "text_1") else ["hang 1"] if isinstance(value, list) else "hang 1"
        for key, value in BODIES[path].items()
    }
    made = Call(app, path, body)
    running = asyncio.create_task(made.run())
    await worker.started.wait()
    made.leave()
    await asyncio.wait_for(running, 30)
    gateway = app.state.gateway
    await until(lambda: gateway.admission.num_open == 0 and worker.num_open == 0)
    assert worker.num_cancelled == 1
    assert gateway.receipts.latest(1)[0].outcome == "cancelled"


@pytest.mark.parametrize("path", BODIES)
async def test_deadlines(app, worker, path):
    body = BODIES[path] | {"chiasm": {"timeout_s": 0.05}}
    body = {key: ["hang 1"] if key in ("texts", "documents") else value for key, value in body.items()}
    body = {key: "hang 1" if key in ("input", "text_2") else value for key, value in body.items()}
    made = await call(app, path, body)
    assert (made.status, made.error["code"]) == (504, "deadline_exceeded")
    assert worker.num_open == 0


SPELLINGS = ["{}", "/{}", "{}/", "{}//", "{}%2F", "{}/.", "{};x"]


@pytest.mark.parametrize("method", ["POST", "GET", "HEAD", "OPTIONS", "PUT", "DELETE"])
@pytest.mark.parametrize("headers", [[], ["Bearer wrong"], ["Bearer "], ["Basic right"], ["Bearer right"] * 2])
async def test_no_path_answers_without_a_key(headers, method):
    worker = FakePoolingWorker()
    app = create_app(worker, FakeIngest(), GatewaySettings(api_keys=("right",)))
    for path in {route.path for route in app.router.routes} - OPEN_PATHS - console_paths():
        for spelling in {s.format(path) for s in SPELLINGS} | {path.upper(), path.title()}:
            made = await call(
                app, spelling, BODIES.get(path, {}), method=method, headers=[("Authorization", v) for v in headers]
            )
            assert made.status == 401, (method, spelling, headers)
    assert not worker.pooled


@pytest.mark.parametrize("path", BODIES)
async def test_every_alias_answers_with_a_key(path):
    app = create_app(FakePoolingWorker(), FakeIngest(), GatewaySettings(api_keys=("right",)))
    made = await call(app, path, BODIES[path], headers=[("Authorization", "Bearer right")])
    assert made.status == 200
    assert set(BODIES) <= {route.path for route in app.router.routes}
