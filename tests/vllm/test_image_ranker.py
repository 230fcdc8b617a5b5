"""The image ranker inside real vLLM servers: the embedded engine's scores, the media room's pictures, keys."""

import asyncio
import base64
import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from chiasm.media.ingest import MediaIngest
from chiasm.pooling.io.base import run
from chiasm.pooling.io.image_ranker import ImageRanker
from chiasm.protocol.pooling.work import PoolParams
from chiasm.settings import MediaSettings
from tests.numeric.pooling.pictures import png
from tests.numeric.pooling.served import served
from tests.vllm import pooling_models
from tests.vllm.crews import MARKS
from tests.vllm.servers import REPOSITORY, start, wait_ready

pytestmark = MARKS
KEY = "the-key"
TEXTS = ("bert", "roberta")
SIZES = [(40, 40), (90, 30), (31, 77), (64, 64), (33, 32)]
URLS = ["data:image/png;base64," + base64.b64encode(png(*size, seed)).decode() for seed, size in enumerate(SIZES)]
BROKEN = "data:image/png;base64," + base64.b64encode(png(40, 40)[:200]).decode()
RANK = {
    "query": "a red chair",
    "candidates": [
        URLS[0],
        {"image": URLS[1], "text": "oak, 1920", "id": "sku-7"},
        URLS[2],
        URLS[0],
        {"image": URLS[3], "text": "quite a long text about a chair " * 9},
        {"image": URLS[0], "text": "<image> is a text here"},
        URLS[4],
    ],
}
MIDDLEWARE = "chiasm.workers.vllm.middleware.ProcessorMiddleware"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {text: pooling_models.image_ranker(folder / text, text) for text in TEXTS}


@pytest.fixture(scope="module")
def servers(crews, models, tmp_path_factory):
    """One server per kind of text encoder."""
    folder = tmp_path_factory.mktemp("servers")
    return crews.lend("image rankers", len(TEXTS), lambda: running(models, folder))


@contextmanager
def running(models, folder):
    """Servers that have started at once."""
    environment = {"PYTHONPATH": str(REPOSITORY / "src"), "CHIASM_GATEWAY__API_KEYS": json.dumps([KEY])}
    flags = ("--runner", "pooling", "--max-model-len", "256", "--io-processor-plugin", "chiasm_image_ranker")
    with ExitStack() as stack:
        started = {}
        for name, model in models.items():
            log = folder / f"{name}.log"
            started[name] = start(
                *flags, "--middleware", MIDDLEWARE, log_path=log, model=model, environment=environment
            )
            stack.callback(started[name].stop)
        for server in started.values():
            wait_ready(server)
        yield started


def ask(server, path, body, key=KEY, method="POST"):
    """One request; status and what came back."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    try:
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
        connection.request(method, path, json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def ranked(server, data):
    """The processor's answer."""
    status, body = ask(server, "/pooling", {"data": data})
    assert status == 200, body
    return json.loads(body)["data"]


def over_embedded(directory, data):
    """The same processor's answer over the embedded engine, in float32."""
    with served(directory) as one:

        def pool(task, inputs, params):
            return one.pool(task, inputs, **{field: getattr(params, field) for field in params.__struct_fields__})

        async def answer():
            ingest = MediaIngest(MediaSettings(), None)

            async def engine(*work):
                return await asyncio.to_thread(pool, *work)

            async def collect(references):
                return await ingest.collect_each(references, 60.0)

            try:
                processor = ImageRanker(one.worker.pooling)
                return await run(processor, data, PoolParams(), "", engine, asyncio.to_thread, collect)
            finally:
                await ingest.aclose()

        return asyncio.run(answer())


def scores(answer):
    """By the candidates' places."""
    return np.array([one["score"] for one in sorted(answer["results"], key=lambda one: one["index"])])


@pytest.mark.parametrize("text", TEXTS)
def test_scores_order_and_ids_are_the_embedded_engine_s(servers, models, text):
    found, expected = ranked(servers[text], RANK), over_embedded(models[text], RANK)
    assert [(one["index"], one["id"]) for one in found["results"]] == [
        (one["index"], one["id"]) for one in expected["results"]
    ]
    np.testing.assert_allclose(scores(found), scores(expected), rtol=0, atol=1e-5)
    assert scores(found)[0] == scores(found)[3], "the same candidate twice is computed once"
    assert np.ptp(scores(found)) > 1e-3, "pictures that come to the same would prove nothing"
    assert found["errors"] == expected["errors"] == []


def test_a_candidate_comes_to_the_same_alone_and_among_others_of_other_lengths_at_once(servers):
    server = servers["bert"]
    alone = {}
    for candidate in (0, 1, 2, 4):
        [one] = ranked(server, RANK | {"candidates": [RANK["candidates"][candidate]]})["results"]
        alone[candidate] = one["score"]

    def mixed(number):
        order = np.random.default_rng(number).permutation([0, 1, 2, 4]).tolist()
        found = scores(ranked(server, RANK | {"candidates": [RANK["candidates"][place] for place in order]}))
        return [(place, float(score)) for place, score in zip(order, found, strict=True)]

    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(mixed, range(32)):
            for place, score in found:
                assert score == pytest.approx(alone[place], abs=1e-5)


def test_requests_at_once_do_not_get_each_other_s_pictures(servers):
    """Fresh pictures, so that towers run in steps that also score."""
    server = servers["bert"]
    urls = ["data:image/png;base64," + base64.b64encode(png(32 + seed, 40, 100 + seed)).decode() for seed in range(24)]

    def one(number):
        return float(scores(ranked(server, {"query": f"chair {number % 3}", "candidates": [urls[number]]}))[0])

    with ThreadPoolExecutor(12) as pool:
        at_once = list(pool.map(one, range(24)))
    assert at_once == pytest.approx([one(number) for number in range(24)], abs=1e-5)
    assert len({round(score, 6) for score in at_once}) > 12


def test_pictures_that_cannot_be_used_are_reported_or_refuse_the_request(servers):
    data = RANK | {"candidates": [URLS[0], BROKEN, "http://127.0.0.1:1/a.png", URLS[1]]}
    found = ranked(servers["bert"], data)
    assert sorted(one["index"] for one in found["results"]) == [0, 3]
    assert [one["index"] for one in found["errors"]] == [1, 2]
    assert found["errors"][1]["code"] == "media_refused"
    for refused in (data | {"on_error": "refuse"}, RANK | {"candidates": [BROKEN, BROKEN]}):
        status, body = ask(servers["bert"], "/pooling", {"data": refused})
        assert status == 400, body
        assert json.loads(body)["error"]["param"].startswith("/data/candidates/")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"data": {"query": "", "candidates": [URLS[0]]}}, "/data/query"),
        ({"data": RANK, "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": URLS[0]}}]}]},
            "",
        ),
    ],
    ids=["empty", "cut", "vLLM's own way"],
)
def test_what_the_caller_should_mend_is_status_400(servers, body, message):
    status, answer = ask(servers["bert"], "/pooling", body)
    assert status == 400, answer
    assert message in answer


def test_texts_without_a_picture_have_no_score_and_harm_nobody(servers):
    status, body = ask(servers["bert"], "/pooling", {"input": "no picture", "task": "classify"})
    assert status != 200 or "NaN" in body or "null" in body
    assert ranked(servers["bert"], RANK)["results"]


@pytest.mark.parametrize(
    "path", ["/pooling", "//pooling", "/Pooling", "/pooling/", "/%70ooling", "/classify", "/v1/models"]
)
@pytest.mark.parametrize("key", [None, "", "wrong", KEY + "x"])
def test_every_path_asks_for_a_key(servers, path, key):
    assert ask(servers["bert"], path, {"data": RANK}, key)[0] == 401
