"""Pictures in the bodies of the pooling APIs: their forms, what is refused, and what is counted."""

import asyncio
import base64

import msgspec
import pytest

from chiasm.errors import MediaDecodeError
from chiasm.gateway import create_app
from chiasm.observability.receipt import Span
from chiasm.protocol.media import MediaItem
from chiasm.protocol.pooling.work import ImageInput, MediaPairInput, PairInput, TextInput, media_of
from chiasm.settings import GatewaySettings, PoolingSettings
from tests.asgi import Call, call
from tests.fakes import FakeIngest
from tests.pooling_fakes import FakePoolingWorker

URL = "https://example.org/a.png"
OTHER = "data:image/png;base64,AAAA"
LARGE = "data:image/png;base64," + base64.b64encode(bytes(30_000)).decode()
PART = {"type": "image_url", "image_url": {"url": URL}}


@pytest.fixture
def worker():
    return FakePoolingWorker(takes_images=True)


@pytest.fixture
def ingest():
    return FakeIngest()


@pytest.fixture
def app(worker, ingest):
    return create_app(worker, ingest, GatewaySettings(), PoolingSettings(max_inputs=8))


def urls(worker):
    """What the worker was asked for, pictures as the URLs that the stand-in made them of."""
    return [_plain(one) for one in worker.pooled[-1].inputs]


def _plain(one):
    if isinstance(one, ImageInput):
        return _plain(one.item)
    if isinstance(one, MediaPairInput):
        return _plain(one.first), _plain(one.second)
    if isinstance(one, PairInput):
        return one.first, one.second
    return one.source.data.decode() if isinstance(one, MediaItem) else one.text if isinstance(one, TextInput) else one


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ({"input": [{"image": URL}, "a text", {"text": "b"}]}, [URL, "a text", "b"]),
        ({"input": [{"image": {"url": URL}}]}, [URL]),
        ({"input": [{"content": [PART]}]}, [URL]),
        ({"input": [{"image": URL}, {"image": OTHER}, {"image": URL}]}, [URL, OTHER, URL]),
        ({"messages": [{"role": "user", "content": [PART]}]}, [URL]),
        ({"messages": [{"role": "user", "content": "a text"}]}, ["a text"]),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "t"}]}]}, ["t"]),
    ],
)
@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling"])
async def test_forms_of_single_inputs(app, worker, path, body, wanted):
    made = await call(app, path, body)
    assert made.status == 200, made.error
    assert urls(worker) == wanted


async def test_coheres_form(app, worker):
    made = await call(app, "/v2/embed", {"images": [URL, OTHER], "input_type": "image"})
    assert made.status == 200, made.error
    assert urls(worker) == [URL, OTHER]
    assert (len(made.json["embeddings"]["float"]), made.json["texts"]) == (2, [])
    made = await call(app, "/v2/embed", {"images": [URL, "bad:"]})
    assert (made.error["code"], made.error["param"]) == ("media_undecodable", "/images/1")
    for body in ({}, {"images": [URL], "texts": ["a"]}):
        assert (await call(app, "/v2/embed", body)).error["param"] == "/texts"


S = "score 1"  # a text that has a score


@pytest.mark.parametrize(
    ("path", "body", "wanted"),
    [
        ("/score", {"text_1": S, "text_2": [{"image": URL}, "score 2"]}, [(S, URL), (S, "score 2")]),
        ("/v1/score", {"queries": {"image": URL}, "documents": S}, [(URL, S)]),
        ("/score", {"data_1": S, "data_2": {"content": [PART, PART]}}, [(S, URL), (S, URL)]),
        ("/rerank", {"query": S, "documents": [{"image": URL}, {"text": "score 2"}]}, [(S, URL), (S, "score 2")]),
        ("/v2/rerank", {"query": {"image": URL}, "documents": [{"image": OTHER}]}, [(URL, OTHER)]),
    ],
)
async def test_forms_of_pairs(app, worker, path, body, wanted):
    made = await call(app, path, body)
    assert made.status == 200, made.error
    assert urls(worker) == wanted


async def test_a_picture_is_not_given_back_with_its_rank(app):
    made = await call(app, "/rerank", {"query": S, "documents": [{"image": URL}, {"text": "score 2"}]})
    assert [result.get("document") for result in made.json["results"]] == [{"text": "score 2"}, None]


async def test_a_large_payload_reaches_the_media_room_as_a_view_of_the_body(app, worker, ingest):
    seen = []
    collect = ingest.collect

    async def watching(references, *rest):
        seen.extend(references)
        return await collect(references, *rest)

    ingest.collect = watching
    made = await call(app, "/v1/embeddings", {"input": [{"image": LARGE}]})
    assert made.status == 200
    assert bytes(seen[0].payload) == LARGE.partition(",")[2].encode()
    made = await call(app, "/v1/embeddings", {"input": LARGE})
    assert made.status == 200
    assert urls(worker) == [LARGE], "a text that looks like one is a text"


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"input": [{"image": "bad:"}]}, "media_undecodable", "/input/0/image"),
        ({"input": ["a", {"image": {"url": "bad:"}}]}, "media_undecodable", "/input/1/image/url"),
        ({"messages": [{"role": "user", "content": [PART, PART]}]}, "invalid_request", "/messages"),
        ({"input": [{"content": [PART, PART]}]}, "invalid_request", "/input/0/content"),
        ({"input": [{"image": URL, "text": "a"}]}, "invalid_request", "/input/0"),
        ({"input": [{}]}, "invalid_request", "/input/0"),
        ({"input": [{"imgae": URL}]}, "invalid_request", "/input/0/imgae"),
        ({"input": [{"image": URL}, [1, 2]]}, "invalid_request", "/input"),
        (
            {"messages": [{"role": "user", "content": [{"type": "video_url", "video_url": "https://e.org/v"}]}]},
            "media_unsupported",
            "/messages/0/content/0/video_url",
        ),
        ({"messages": [{"role": "user", "content": [PART | {"uuid": "a"}]}]}, "unsupported_feature", None),
    ],
)
async def test_what_is_refused(app, body, code, param):
    made = await call(app, "/v1/embeddings", body)
    assert made.error["code"] == code
    assert param is None or made.error["param"] == param


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/embeddings", {"input": ["a", {"image": URL}]}, "/input/1/image"),
        ("/pooling", {"input": [{"image": URL}]}, "/input/0/image"),
        ("/classify", {"input": [{"image": URL}]}, "/input/0/image"),
        ("/score", {"text_1": "a", "text_2": {"image": URL}}, "/text_2/image"),
        ("/rerank", {"query": "a", "documents": [{"image": URL}]}, "/documents/0/image"),
    ],
)
async def test_a_model_without_eyes_refuses_before_anything_is_fetched(path, body, param):
    ingest, worker = FakeIngest(), FakePoolingWorker()
    app = create_app(worker, ingest, GatewaySettings(), PoolingSettings())
    made = await call(app, path, body)
    assert (made.status, made.error["code"], made.error["param"]) == (400, "media_unsupported", param)
    assert not ingest.started.is_set()
    assert worker.pooled == []


async def test_bytes_of_pictures_count_for_the_tenant_and_its_caches_are_its_own(worker):
    settings = GatewaySettings(api_keys=("one", "two"))
    app = create_app(worker, FakeIngest(), settings, PoolingSettings())
    for key in ("one", "two"):
        headers = [("authorization", f"Bearer {key}")]
        assert (await call(app, "/v1/embeddings", {"input": [{"image": URL}, "a"]}, headers=headers)).status == 200
    assert [one.num_media_bytes for one in app.state.gateway.tenants.uses()] == [len(URL)] * 2
    salts = [request.cache_salt for request in worker.pooled]
    assert len(set(salts)) == 2
    assert "" not in salts


class Picky(FakePoolingWorker):
    """Encodes pictures, says so as the worker does, and finds those of one URL broken."""

    broken = ""

    async def pool(self, request):
        pictures = [item for one in request.inputs for item in media_of(one)]
        for number, item in enumerate(pictures):
            if self.broken and item.source.data.decode() == self.broken:
                raise MediaDecodeError(f"Media item {number}: broken", item=number)
        found = await super().pool(request)
        spans = tuple(Span("encode", 0.0, 0.001, number) for number, _ in enumerate(pictures))
        return msgspec.structs.replace(found, spans=spans)


@pytest.mark.parametrize(
    ("path", "body", "broken", "number", "param"),
    [
        ("/v1/embeddings", {"input": ["a", {"image": URL}]}, URL, 0, "/input/1/image"),
        ("/rerank", {"query": {"image": URL}, "documents": ["1", {"image": OTHER}]}, URL, 0, "/query/image"),
        ("/rerank", {"query": {"image": URL}, "documents": ["1", {"image": OTHER}]}, OTHER, 1, "/documents/1/image"),
        ("/score", {"text_1": {"image": URL}, "text_2": ["1", {"image": OTHER}]}, OTHER, 1, "/text_2/1/image"),
        ("/v1/embeddings", {"input": [{"image": URL}, {"image": URL}, {"image": OTHER}]}, OTHER, 2, "/input/2/image"),
    ],
)
async def test_what_is_found_broken_late_is_named_as_what_is_found_at_once(path, body, broken, number, param, ingest):
    worker = Picky(takes_images=True)
    worker.broken = broken
    app = create_app(worker, ingest, GatewaySettings(), PoolingSettings(max_inputs=8))
    refused = await call(app, path, body)
    error = refused.error
    assert (error["param"], error["message"]) == (param, f"Media item {number}: broken")


async def test_receipts_number_pictures_as_the_body_does(ingest):
    app = create_app(Picky(takes_images=True), ingest, GatewaySettings(), PoolingSettings(max_inputs=8))
    body = {"query": {"image": URL}, "documents": [{"image": OTHER}, {"image": URL + "2"}]}
    answer = await call(app, "/rerank", body | {"chiasm": {"receipt": True}})
    spans = answer.json["chiasm"]["receipt"]["spans"]
    assert [one["item"] for one in spans if one["stage"] == "encode"] == [0, 1, 0, 2]


async def test_a_client_that_leaves_while_a_picture_is_fetched_leaves_nothing(app, ingest):
    one = Call(app, "/v1/embeddings", {"input": [{"image": "hang:"}]})
    running = asyncio.create_task(one.run())
    await ingest.started.wait()
    one.leave()
    await running
    assert (ingest.num_open, ingest.num_cancelled) == (0, 1)
    assert app.state.gateway.admission.num_open == 0
