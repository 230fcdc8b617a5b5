"""A real sentence model behind real HTTP, asked by the official clients."""

import contextlib
import json
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import cohere
import numpy as np
import openai
import pytest

from chiasm.launch.local import background_server
from chiasm.settings import resolve
from tests.numeric.minilm import directory

QUERY = "What is the capital of France?"
DOCUMENTS = ["Paris is the capital of France.", "Fish swim in the sea.", "France borders Spain."]


@contextlib.contextmanager
def serving(*overrides):
    overrides = [f"engine.model={directory()}", "engine.served_name=minilm", "gateway.port=0", *overrides]
    settings = resolve(environment={}, overrides=overrides).settings
    with background_server(settings, lambda what, share: None) as server:
        yield server


@pytest.fixture(scope="module")
def server():
    with serving() as one:
        yield one


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture
def cohere_client(server):
    with cohere.ClientV2(api_key="none", base_url=server.address, timeout=60) as made:
        yield made


def post(server, path, body, key=None):
    request = urllib.request.Request(server.address + path, json.dumps(body).encode())
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.loads(response.read())
    except urllib.error.HTTPError as error:
        error.close()
        raise


def test_the_server_knows_what_its_model_is_for(server, client):
    assert server.tasks == ("embed", "token_embed", "score")
    assert client.models.list().data[0].id == "minilm"


def test_openais_client(client):
    """It asks for base64 by itself; numbers are the same as in lists."""
    packed = client.embeddings.create(model="minilm", input=DOCUMENTS)
    listed = client.embeddings.create(model="minilm", input=DOCUMENTS, encoding_format="float")
    rows = np.array([one.embedding for one in packed.data])
    np.testing.assert_allclose(rows, [one.embedding for one in listed.data], rtol=0, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    assert packed.usage.prompt_tokens == packed.usage.total_tokens > 20
    short = client.embeddings.create(model="minilm", input=DOCUMENTS[0], dimensions=128)
    assert len(short.data[0].embedding) == 128


def test_openais_client_hears_what_is_wrong(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="minilm", input=["ok", "word " * 400])
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "/input/1")
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="other", input="x")
    with pytest.raises(openai.BadRequestError, match="does not generate"):
        client.chat.completions.create(model="minilm", messages=[{"role": "user", "content": "x"}])


def test_coheres_client(cohere_client):
    ranked = cohere_client.rerank(model="minilm", query=QUERY, documents=DOCUMENTS, top_n=2)
    assert [one.index for one in ranked.results] == [0, 2]
    assert ranked.results[0].relevance_score > ranked.results[1].relevance_score
    embedded = cohere_client.embed(
        model="minilm", texts=DOCUMENTS, input_type="search_document", embedding_types=["float"]
    )
    assert np.array(embedded.embeddings.float_).shape == (3, 384)
    with pytest.raises(cohere.BadRequestError):
        cohere_client.rerank(model="minilm", query=QUERY, documents=[])


def test_a_processor_answers_in_one_call(server):
    candidates = [{"id": f"doc-{index}", "text": text} for index, text in enumerate(DOCUMENTS)]
    answer = post(server, "/pooling", {"task": "plugin", "data": {"query": QUERY, "candidates": candidates}})
    assert [one["id"] for one in answer["data"]["results"]] == ["doc-0", "doc-2", "doc-1"]
    assert (answer["model"], answer["dtype"]) == ("minilm", "float32")


def test_many_callers_get_the_same_numbers_as_one(server):
    """Batches are mixed from all callers; every answer is the one that its request gets alone."""
    bodies = [{"query": QUERY, "documents": [f"{text} {n}" for text in DOCUMENTS]} for n in range(24)]
    alone = [post(server, "/rerank", body)["results"] for body in bodies]
    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(lambda body: post(server, "/rerank", body)["results"], bodies))
    for first, second in zip(alone, together, strict=True):
        assert [one["index"] for one in first] == [one["index"] for one in second]
        scores = [[one["relevance_score"] for one in results] for results in (first, second)]
        np.testing.assert_allclose(*scores, rtol=0, atol=1e-6)


def test_keys_and_queue_bounds():
    with serving('gateway.api_keys=["secret"]', "pooling.max_waiting_tokens=50") as server:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            post(server, "/v2/rerank", {"query": QUERY, "documents": DOCUMENTS})
        assert post(server, "/v2/rerank", {"query": QUERY, "documents": DOCUMENTS}, "secret")["results"]
        outcomes = []

        def ask():
            try:
                post(server, "/v1/embeddings", {"input": ["some words to wait for " * 8] * 1}, "secret")
                outcomes.append(200)
            except urllib.error.HTTPError as error:
                outcomes.append(error.code)

        threads = [threading.Thread(target=ask) for _ in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(outcomes) == 40
        assert set(outcomes) <= {200, 429}
        assert 200 in outcomes


def test_a_topology_is_refused():
    from chiasm.errors import InvalidSettingError

    with pytest.raises(InvalidSettingError), serving("routing.topology=agg"):
        pass
