"""Pictures in the pooling APIs behind real HTTP: models with random weights, bytes from data URLs and downloads."""

import base64
import contextlib
import hashlib
import http.server
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
from tests.numeric.pooling.models import build, build_clip, build_image_ranker
from tests.numeric.pooling.pictures import png

PICTURES = {"a": png(40, 30, 1), "b": png(30, 40, 2), "c": png(64, 64, 3), "broken": png(40, 30, 4)[:200]}


ADMIN = 'gateway.admin_keys=["operator"]'
OPERATOR = {"Authorization": "Bearer operator"}
ASKED = []  # names of downloads


def data_url(name):
    return "data:image/png;base64," + base64.b64encode(PICTURES[name]).decode()


class Pictures(http.server.BaseHTTPRequestHandler):
    """Serves `PICTURES` by name."""

    def do_GET(self):
        name = self.path.strip("/").partition("-")[0]
        ASKED.append(name)
        data = PICTURES.get(name)
        self.send_response(404 if data is None else 200)
        self.send_header("Content-Length", str(len(data or b"")))
        self.end_headers()
        self.wfile.write(data or b"")

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def pictures():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pictures)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


@contextlib.contextmanager
def serving(directory, port, *overrides):
    media = [
        'media.allowed_domains=["127.0.0.1"]',
        'media.allowed_private_hosts=["127.0.0.1"]',
        "media.allow_http=true",
    ]
    settings = [f"engine.model={directory}", "engine.served_name=m", "gateway.port=0", f"media.allowed_ports=[{port}]"]
    resolved = resolve(environment={}, overrides=[*settings, *media, *overrides]).settings
    with background_server(resolved, lambda what, share: None) as server:
        yield server


@pytest.fixture(scope="module")
def clip(tmp_path_factory, pictures):
    directory = build_clip(tmp_path_factory.mktemp("models") / "clip")
    with serving(directory, pictures, ADMIN) as server:
        yield server


@pytest.fixture(scope="module")
def ranker(tmp_path_factory, pictures):
    with serving(build_image_ranker(tmp_path_factory.mktemp("models") / "ranker"), pictures) as server:
        yield server


def post(server, path, body, method="POST", headers=()):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.address + path, data, dict(headers), method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return json.loads(error.read())


def total(server, name):
    with urllib.request.urlopen(server.address + "/metrics", timeout=60) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"chiasm_worker_{name}_total"))


def test_a_picture_by_url_and_by_bytes_is_one_picture_that_is_encoded_once(clip, pictures):
    url = f"http://127.0.0.1:{pictures}/a"
    body = {"input": ["a dog", {"image": url}, {"image": data_url("a")}]}
    first = post(clip, "/v1/embeddings", body)
    rows = np.array([one["embedding"] for one in first["data"]])
    assert rows.shape == (3, 24)
    assert (rows[1] == rows[2]).all()
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    before = total(clip, "pooling_pictures_decoded"), total(clip, "pooling_pictures_encoded")
    again = post(clip, "/v1/embeddings", {"input": [{"image": url}], "chiasm": {"receipt": True}})
    assert again["data"][0]["embedding"] == first["data"][1]["embedding"]
    assert (total(clip, "pooling_pictures_decoded"), total(clip, "pooling_pictures_encoded")) == before
    receipt = again["chiasm"]["receipt"]
    assert (receipt["num_items"], receipt["num_cached_embeddings"], receipt["num_visual_tokens"]) == (1, 1, 16)
    assert "fetch" in receipt["stages_s"]


def test_forms_of_a_picture_come_to_the_same(clip):
    message = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": data_url("b")}}]}]
    listed = post(clip, "/v1/embeddings", {"input": [{"image": data_url("b")}]})["data"][0]["embedding"]
    spoken = post(clip, "/v1/embeddings", {"messages": message})["data"][0]["embedding"]
    pooled = post(clip, "/pooling", {"messages": message, "task": "embed"})["data"][0]["data"]
    assert listed == spoken == pooled
    client = openai.OpenAI(base_url=f"{clip.address}/v1", api_key="none", max_retries=0, timeout=60)
    with client:
        made = client.embeddings.create(model="m", input="a dog", encoding_format="float")
        assert len(made.data[0].embedding) == 24


def test_coheres_client_embeds_pictures(clip):
    with cohere.ClientV2(api_key="none", base_url=clip.address, timeout=60) as client:
        made = client.embed(
            model="m", images=[data_url("a"), data_url("b")], input_type="image", embedding_types=["float"]
        )
    listed = post(clip, "/v1/embeddings", {"input": [{"image": data_url("a")}, {"image": data_url("b")}]})["data"]
    assert made.embeddings.float_ == [one["embedding"] for one in listed]


def test_scores_are_of_the_same_space(clip):
    vectors = post(clip, "/v1/embeddings", {"input": ["a dog", {"image": data_url("a")}, {"image": data_url("b")}]})
    text, first, second = (np.array(one["embedding"]) for one in vectors["data"])
    body = {"text_1": "a dog", "text_2": [{"image": data_url("a")}, {"image": data_url("b")}]}
    found = [one["score"] for one in post(clip, "/score", body)["data"]]
    assert found == pytest.approx([text @ first, text @ second], abs=1e-5)
    body = {"query": {"image": data_url("a")}, "documents": [{"image": data_url("b")}, {"text": "a dog"}]}
    ranked = {one["index"]: one["relevance_score"] for one in post(clip, "/rerank", body)["results"]}
    assert ranked == pytest.approx({0: first @ second, 1: text @ first}, abs=1e-5)


def test_deleting_reaches_features(clip):
    post(clip, "/v1/embeddings", {"input": [{"image": data_url("c")}]})
    identity = hashlib.sha256(PICTURES["c"]).hexdigest()
    report = post(clip, f"/admin/media/{identity}", None, "DELETE", OPERATOR)
    assert report["complete"]
    assert report["workers"][0]["num_embeddings"] == 1


@pytest.mark.parametrize(
    ("image", "code"),
    [
        ("https://example.org/a.png", "media_refused"),
        ("ftp://127.0.0.1/a", "media_refused"),
        ("iVBORw0KGgo=", "media_refused"),
        ("broken", "media_undecodable"),
        ("missing", "media_fetch_failed"),
    ],
)
def test_the_media_rooms_rules_hold(clip, pictures, image, code):
    image = {"broken": data_url("broken"), "missing": f"http://127.0.0.1:{pictures}/missing"}.get(image, image)
    error = post(clip, "/v1/embeddings", {"input": ["a", {"image": image}]})["error"]
    assert error["code"] == code
    assert error["param"].startswith("/input/1")


def test_limits_of_a_request_hold(tmp_path, pictures):
    with serving(build_clip(tmp_path / "m"), pictures, "media.max_items=2", "media.max_item_pixels=2000") as server:
        error = post(server, "/v1/embeddings", {"input": [{"image": data_url("a")}] * 3})["error"]
        assert error["code"] == "media_too_large"
        error = post(server, "/v1/embeddings", {"input": [{"image": data_url("c")}]})["error"]
        assert (error["code"], error["param"]) == ("media_too_large", "/input/0/image")


def test_tenants_share_no_features_and_bytes_count(tmp_path, pictures):
    with serving(build_clip(tmp_path / "m"), pictures, ADMIN, 'gateway.api_keys=["one", "two"]') as server:
        for key in ("one", "two", "one"):
            headers = {"Authorization": f"Bearer {key}"}
            assert "data" in post(server, "/v1/embeddings", {"input": [{"image": data_url("a")}]}, headers=headers)
        tenants = post(server, "/admin/tenants", None, "GET", OPERATOR)
    assert sorted(one["num_media_bytes"] for one in tenants["tenants"]) == [len(PICTURES["a"]), 2 * len(PICTURES["a"])]


def test_a_model_without_eyes(tmp_path, pictures):
    with serving(build(tmp_path / "m", "bert"), pictures) as server:
        error = post(server, "/v1/embeddings", {"input": [{"image": f"http://127.0.0.1:{pictures}/never"}]})["error"]
        assert error["code"] == "media_unsupported"
    assert "never" not in ASKED


def test_the_image_ranker_ranks_what_it_can_and_says_what_it_cannot(ranker, pictures):
    base = f"http://127.0.0.1:{pictures}"
    candidates = [f"{base}/a-1", {"image": data_url("b"), "id": "second"}, f"{base}/missing", data_url("broken")]
    candidates += [{"image": f"{base}/c", "text": "a chair", "id": 5}, data_url("a")]
    body = {"task": "plugin", "data": {"query": "a red chair", "candidates": candidates}}
    answer = post(ranker, "/pooling", body)["data"]
    scores = {one["index"]: one["score"] for one in answer["results"]}
    assert set(scores) == {0, 1, 4, 5}
    assert scores[0] == scores[5], "the same bytes"
    assert list(scores.values()) == sorted(scores.values(), reverse=True)
    codes = {one["index"]: one["code"] for one in answer["errors"]}
    assert codes == {2: "media_fetch_failed", 3: "media_undecodable"}
    for index in (1, 4):
        one = {"query": "a red chair", "candidates": [candidates[index]]}
        alone = post(ranker, "/pooling", {"task": "plugin", "data": one})["data"]["results"][0]
        assert alone["score"] == pytest.approx(scores[index], abs=1e-6)
    error = post(ranker, "/pooling", {"task": "plugin", "data": body["data"] | {"on_error": "refuse"}})["error"]
    assert (error["code"], error["param"]) == ("media_fetch_failed", "/data/candidates/2")


def test_ranking_by_rerank_is_the_same(ranker):
    texts = ["b", "a", "c"]
    body = {"query": "a dog", "documents": [{"image": data_url(name)} for name in texts]}
    ranked = {one["index"]: one["relevance_score"] for one in post(ranker, "/rerank", body)["results"]}
    data = {"query": "a dog", "candidates": [data_url(name) for name in texts]}
    plugin = post(ranker, "/pooling", {"task": "plugin", "data": data})["data"]["results"]
    assert ranked == pytest.approx({one["index"]: one["score"] for one in plugin}, abs=1e-6)


def test_requests_at_once_come_to_what_they_come_to_alone(ranker):
    def ask(number):
        names = ["a", "b", "c"][: 1 + number % 3]
        data = {"query": f"query {number % 4} " + "x" * (number % 7), "candidates": [data_url(name) for name in names]}
        answer = post(ranker, "/pooling", {"task": "plugin", "data": data})["data"]["results"]
        return {one["index"]: one["score"] for one in answer}

    alone = [ask(number) for number in range(12)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(ask, [*range(12), *range(12)]))
    for number, found in enumerate(together):
        assert found == pytest.approx(alone[number % 12], abs=1e-6)
