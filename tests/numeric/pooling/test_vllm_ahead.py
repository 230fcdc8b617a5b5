"""Requests to a processor inside vLLM, read before vLLM: on threads, within limits, with pictures by the media room."""

import asyncio
import base64
import json
import threading

import numpy as np
import pytest

from chiasm.engines.pooling.tokens import InputTokenizer
from chiasm.pooling.io.image_ranker import ImageRanker
from chiasm.pooling.io.reranker import Reranker
from chiasm.pooling.model_files import read_pooling_model
from chiasm.settings import GatewaySettings, MediaSettings
from chiasm.workers.pooling.facts import pooling_info
from chiasm.workers.pooling.tasks import Reader
from chiasm.workers.pooling.worker import picture_preparer
from chiasm.workers.vllm import ahead
from chiasm.workers.vllm.ahead import READ_AHEAD, Serving, announce
from chiasm.workers.vllm.middleware import ProcessorMiddleware, ReadAhead
from chiasm.workers.vllm.requests import ServedModel
from tests.asgi import Call
from tests.numeric.pooling.models import build, build_image_ranker
from tests.numeric.pooling.pictures import png

URLS = ["data:image/png;base64," + base64.b64encode(png(40, 30 + seed, seed)).decode() for seed in range(3)]
BROKEN = "data:image/png;base64," + base64.b64encode(png(40, 40)[:200]).decode()


class Engine:
    """Stands where vLLM does: keeps what it was sent and what was read, and answers 200."""

    def __init__(self):
        self.body = b""
        self.scope = {}
        self.request = None

    async def __call__(self, scope, receive, send):
        self.scope = scope
        if scope["type"] != "http":
            return
        self.body = (await receive()).get("body", b"")
        self.request = READ_AHEAD.get()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


def reading(kind, directory):
    model = read_pooling_model(directory)
    reader = Reader(model, InputTokenizer(directory, model, max_tokens=model.max_tokens), similarity=None)
    info = pooling_info(model, 0)
    preparer = picture_preparer(directory) if model.takes_images else None
    return Serving(kind(info), ServedModel("tiny", model, reader, info, preparer))


@pytest.fixture(scope="module")
def ranker(tmp_path_factory):
    return reading(ImageRanker, build_image_ranker(tmp_path_factory.mktemp("ranker") / "m"))


@pytest.fixture(scope="module")
def reranker(tmp_path_factory):
    return reading(Reranker, build(tmp_path_factory.mktemp("bert"), "bert", "sequence", num_labels=1))


@pytest.fixture(autouse=True)
def nothing_announced(monkeypatch):
    monkeypatch.setattr(ahead, "_SERVING", [])


def send(serving, body, path="/pooling", **settings):
    """One request through the middleware; the call, and what the engine got."""
    announce(serving)
    engine = Engine()
    call = Call(ReadAhead(engine, GatewaySettings(**settings), MediaSettings()), path, body)
    asyncio.run(call.run())
    return call, engine


def send_raw(serving, body):
    """As `send`, of bytes."""
    announce(serving)
    engine = Engine()
    call = Call(ReadAhead(engine, GatewaySettings(), MediaSettings()), "/pooling", pieces=[body])
    asyncio.run(call.run())
    return call, engine


def test_vllm_gets_a_small_body_and_the_request_with_tokens_and_pictures(ranker):
    data = {"query": "a chair", "candidates": [URLS[0], URLS[1], URLS[0]]}
    call, engine = send(ranker, {"data": data, "priority": 3})
    assert call.status == 200
    assert json.loads(engine.body) == {"data": None, "priority": 3}
    assert dict(engine.scope["headers"])[b"content-length"] == str(len(engine.body)).encode()
    tokens = engine.request.tokens()
    assert len(tokens) == 2, "the same candidate is computed once"
    pictures = [engine.request.picture(one.place) for one in tokens]
    assert len({identity for identity, _ in pictures}) == 2
    assert all(pixels.shape == (3, 32, 32) and pixels.dtype == np.float32 for _, pixels in pictures)
    answer = engine.request.answer([np.array([score], np.float32) for score in (0.1, 0.9)])
    assert [one["index"] for one in answer["results"]] == [1, 0, 2]
    assert READ_AHEAD.get() is None


def test_arrays_are_gone_once_the_engine_has_its_own(ranker):
    _, engine = send(ranker, {"data": {"query": "a", "candidates": [URLS[0]]}})
    engine.request.drop_pictures()
    with pytest.raises(KeyError):
        engine.request.picture(0)


def test_a_broken_picture_is_reported_to_post(ranker):
    _, engine = send(ranker, {"data": {"query": "a", "candidates": [BROKEN, URLS[0]]}})
    answer = engine.request.answer([np.array([0.5], np.float32)])
    assert [one["index"] for one in answer["results"]] == [1]
    assert [one["index"] for one in answer["errors"]] == [0]


@pytest.mark.parametrize(
    ("data", "status", "param"),
    [
        ({"query": "", "candidates": [URLS[0]]}, 400, "/data/query"),
        ({"query": "a", "candidates": [BROKEN]}, 400, "/data/candidates/0"),
        ({"query": "a", "candidates": ["ftp://example.org/a.png"]}, 400, "/data/candidates/0"),
        ({"query": "a", "candidates": [URLS[0]] * 17}, 413, "/data"),
    ],
    ids=["processor", "broken", "refused", "too many"],
)
def test_what_is_refused_never_reaches_vllm(ranker, data, status, param):
    call, engine = send(ranker, {"data": data})
    assert (call.status, call.error["param"]) == (status, param)
    assert not engine.scope


@pytest.mark.parametrize("data", [b'"\xff"', b"1e999999"], ids=["no text", "no number"])
def test_data_that_cannot_be_read_is_refused(reranker, data):
    call, engine = send_raw(reranker, b'{"data":' + data + b"}")
    assert (call.status, call.error["param"]) == (400, "/data")
    assert not engine.scope


def test_a_body_that_is_too_deep_passes_as_it_came(reranker):
    body = b'{"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    call, engine = send_raw(reranker, body)
    assert (call.status, engine.request, engine.body) == (200, None, body)


def test_a_fault_is_answered_and_says_nothing(reranker, monkeypatch, caplog):
    def fail(*_):
        raise ValueError("what went wrong")

    monkeypatch.setattr(reranker.served.reader, "read", fail)
    call, engine = send(reranker, {"data": {"query": "q", "candidates": ["a"]}})
    assert call.status == 500
    assert "went wrong" not in json.dumps(call.error)
    assert "went wrong" in caplog.text
    assert not engine.scope


def test_a_body_beyond_the_limit_is_refused(ranker):
    call, _ = send(ranker, {"data": {"query": "a" * 2000, "candidates": [URLS[0]]}}, max_body_bytes=1024)
    assert call.status == 413


def test_texts_are_read_on_threads(reranker, monkeypatch):
    seen = []
    read = reranker.served.reader.read

    def watched(*arguments):
        seen.append(threading.current_thread() is threading.main_thread())
        return read(*arguments)

    monkeypatch.setattr(reranker.served.reader, "read", watched)
    call, engine = send(reranker, {"data": {"query": "q", "candidates": ["a", "b"]}})
    assert call.status == 200
    assert seen == [False]
    assert len(engine.request.inputs) == 2


@pytest.mark.parametrize("body", [{"input": "a text"}, [1], "no object"])
def test_what_is_not_for_a_processor_passes_as_it_came(reranker, body):
    call, engine = send(reranker, body)
    assert (call.status, engine.request) == (200, None)
    assert json.loads(engine.body) == body


def test_other_paths_and_servers_without_a_processor_are_left_alone(reranker):
    data = {"data": {"query": "q", "candidates": ["a"]}}
    _, engine = send(reranker, data, "/classify")
    assert json.loads(engine.body) == data
    ahead._SERVING.clear()
    other = Engine()
    asyncio.run(Call(ReadAhead(other, GatewaySettings(), MediaSettings()), "/pooling", data).run())
    assert json.loads(other.body) == data


def test_a_client_that_leaves_while_its_request_is_read_ends_it(reranker):
    started, may_go_on = threading.Event(), threading.Event()

    class Slow(Reranker):
        def parse(self, data):
            started.set()
            assert may_go_on.wait(30)
            return super().parse(data)

    announce(Serving(Slow(reranker.served.info), reranker.served))
    engine = Engine()
    call = Call(
        ReadAhead(engine, GatewaySettings(), MediaSettings()),
        "/pooling",
        {"data": {"query": "q", "candidates": ["a"]}},
    )

    async def leave():
        running = asyncio.create_task(call.run())
        await asyncio.to_thread(started.wait, 30)
        call.leave()
        await running

    try:
        asyncio.run(_released_after(leave(), may_go_on))
    finally:
        may_go_on.set()
    assert not engine.scope


async def _released_after(waiting, event):
    await waiting
    event.set()


def test_with_keys_every_path_asks_for_one(monkeypatch):
    monkeypatch.setenv("CHIASM_GATEWAY__API_KEYS", '["k"]')
    engine = Engine()
    middleware = ProcessorMiddleware(engine)

    async def status(path, *headers):
        return (await Call(middleware, path, {}, headers=headers).run()).status

    for path in ("/pooling", "/rerank", "//rerank", "/v2/rerank", "/anything", "/Pooling"):
        assert asyncio.run(status(path)) == 401
        assert asyncio.run(status(path, ("authorization", "Bearer x"))) == 401
        assert asyncio.run(status(path, ("authorization", "Bearer k"), ("authorization", "Bearer k"))) == 401
    assert asyncio.run(status("/v1/models", ("authorization", "Bearer k"))) == 200
