"""IO processors and a model of Chiasm's inside real vLLM servers: the answers of the embedded engine, nothing kept."""

import asyncio
import http.client
import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import numpy as np
import pytest

from chiasm.pooling.io.base import run
from chiasm.pooling.io.registry import processor_class
from chiasm.pooling.plugin_package import write_plugin_package
from chiasm.protocol.pooling.work import PoolParams
from tests.numeric.minilm import directory as minilm
from tests.numeric.pooling.served import served
from tests.vllm import pooling_models, probe_plugin
from tests.vllm.crews import MARKS
from tests.vllm.servers import REPOSITORY, start, vllm_python, wait_ready

pytestmark = MARKS
CANDIDATES = [
    "Paris is the capital of France.",
    "Fish swim.",
    "Paris is the capital of France.",
    "",
    "Lyon is a city in France. " * 60,
    {"id": "mine", "text": "Ünïcode, emoji \U0001f600 and 漢字"},
]
RERANK = {"query": "What is the capital of France?", "candidates": CANDIDATES}
REVIEWS = {
    "reviews": [
        {"review": "The food was great but the service awful.", "aspects": ["food", "service", "food"]},
        {"review": "Battery lasts two days; I would buy it again.", "aspects": ["battery"]},
    ]
}

PROCESSORS = {"cross": ("chiasm_reranker", 512), "absa": ("chiasm_absa", 512), "minilm": ("probe", 256)}
OFFLINE = """
import json, sys
from vllm import LLM
llm = LLM(sys.argv[1], runner="pooling", dtype="float32", max_model_len=512, enforce_eager=True,
          io_processor_plugin="chiasm_reranker")
for _ in range(2):
    (output,) = llm.encode({"data": json.loads(sys.argv[2])}, pooling_task="plugin", use_tqdm=False)
    print("ANSWER", json.dumps(output.outputs), flush=True)
"""
IN_PROCESS = {
    "HF_HUB_OFFLINE": "1",
    "PYTHONPATH": str(REPOSITORY / "src"),
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        "cross": pooling_models.cross_encoder(folder / "cross"),
        "absa": pooling_models.aspect_sentiment(folder / "absa"),
        "minilm": minilm(),
    }


@pytest.fixture(scope="module")
def servers(crews, models, tmp_path_factory):
    """One server per model and processor."""
    folder = tmp_path_factory.mktemp("servers")
    return crews.lend("pooling", len(PROCESSORS), lambda: running(models, folder))


@contextmanager
def running(models, folder):
    """Servers that have started at once."""
    plugins = probe_plugin.install(folder / "plugins")
    environment = {"PYTHONPATH": f"{REPOSITORY / 'src'}{os.pathsep}{plugins}"}
    with ExitStack() as stack:
        started = {}
        for name, (processor, length) in PROCESSORS.items():
            flags = ("--runner", "pooling", "--max-model-len", str(length), "--io-processor-plugin", processor)
            if name == "minilm":  # requests are read on threads, before vLLM's event loop gets them
                flags += ("--middleware", "chiasm.workers.vllm.middleware.ProcessorMiddleware")
            log = folder / f"{name}.log"
            started[name] = start(*flags, log_path=log, model=models[name], environment=environment)
            stack.callback(started[name].stop)
        for server in started.values():
            wait_ready(server)
        yield started


def over_vllm(server, data, **fields):
    """One request to `/pooling`; the processor's answer."""
    status, body = server.request("POST", "/pooling", {"data": data} | fields)
    answer = json.loads(body)
    assert status == 200, answer
    return answer["data"]


def over_embedded(directory, name, data):
    """The same processor's answer over the embedded engine, in float32."""

    with served(directory) as one:

        def pool(task, inputs, params):
            return one.pool(task, inputs, **{field: getattr(params, field) for field in params.__struct_fields__})

        async def answer():
            processor = processor_class(name)(one.worker.pooling)

            async def engine(*work):
                return await asyncio.to_thread(pool, *work)

            return await run(processor, data, PoolParams(), "", engine, asyncio.to_thread)

        return asyncio.run(answer())


@pytest.mark.parametrize("name", ["cross", "minilm"])
def test_a_reranker_gives_the_embedded_engine_s_scores_order_and_ids(servers, models, name):
    found = over_vllm(servers[name], RERANK)["results"]
    expected = over_embedded(models[name], "reranker", RERANK)["results"]
    assert [(one["index"], one["id"]) for one in found] == [(one["index"], one["id"]) for one in expected]
    assert np.allclose([one["score"] for one in found], [one["score"] for one in expected], rtol=0, atol=1e-5)
    places = [one["index"] for one in found]
    assert places.index(2) == places.index(0) + 1, "equal candidates keep their order"
    assert len({round(one["score"], 4) for one in found}) > 3, "the model tells candidates apart"


def test_a_model_of_chiasm_s_own_is_loaded_and_its_labels_and_spans_are_right(servers, models):
    found = over_vllm(servers["absa"], REVIEWS)["reviews"]
    for review, answers in zip(REVIEWS["reviews"], found, strict=True):
        assert [one["aspect"] for one in answers["aspects"]] == review["aspects"]
        for one in answers["aspects"]:
            probabilities, places = pooling_models.aspect_probabilities(models["absa"], review["review"], one["aspect"])
            best, labels = probabilities.max(dim=1)
            if one["span"] is None:
                assert all(label == 0 for label in labels.tolist())
                continue
            rows = [row for row, (begin, end) in enumerate(places) if one["span"][0] <= begin and end <= one["span"][1]]
            kinds = {pooling_models.LABELS[labels[row]][2:] for row in rows}
            assert kinds == {one["label"]}
            assert abs(float(best[rows].mean()) - one["score"]) < 1e-5
    assert any(one["span"] for answers in found for one in answers["aspects"])
    assert found[0]["aspects"][0] == found[0]["aspects"][2]
    expected = over_embedded(models["absa"], "absa", REVIEWS)["reviews"]
    for one, other in zip(flat(found), flat(expected), strict=True):
        assert (one["label"], one["span"]) == (other["label"], other["span"])
        assert one["score"] == pytest.approx(other["score"], abs=1e-5)


def flat(reviews):
    return [one for answers in reviews for one in answers["aspects"]]


def test_a_package_of_chiasm_plugin_new_loads_inside_vllm(tmp_path):
    write_plugin_package("quality-scorer", tmp_path)
    script = (
        "import quality_scorer; from vllm.utils.import_utils import resolve_obj_by_qualname as resolve\n"
        "print(resolve(quality_scorer.class_for_vllm()).kind)"
    )
    path = f"{REPOSITORY / 'src'}{os.pathsep}{tmp_path / 'quality-scorer' / 'src'}"
    done = subprocess.run(
        [vllm_python(), "-c", script],
        env=os.environ | IN_PROCESS | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert "quality_scorer.scorer.QualityScorer" in done.stdout, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"data": {"query": "", "candidates": ["a"]}}, "/data/query"),
        ({"data": {"query": "a"}}, "candidates"),
        ({"data": RERANK, "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
    ],
    ids=["empty", "missing", "cut"],
)
def test_what_the_caller_should_mend_is_status_400(servers, fields, message):
    status, body = servers["cross"].request("POST", "/pooling", fields)
    assert status == 400, body
    assert message in body.decode()


def test_nothing_is_left_of_requests_that_failed_or_were_cancelled(servers):
    server = servers["minilm"]
    long = {"query": "slow", "candidates": [f"{number} {'word ' * 240}" for number in range(150)]}

    def one(number):
        if number % 10 == 0:
            with suppress(TimeoutError):
                server.request("POST", "/pooling", {"data": long}, timeout_s=0.3)
            return
        status, _ = server.request("POST", "/pooling", {"data": RERANK | {"query": "fail" if number % 5 == 0 else "a"}})
        assert status == (500 if number % 5 == 0 else 200)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(40)))
    assert over_vllm(server, "report")["alive"] == 1, "only the one that asks"


def test_equal_request_ids_do_not_mix_up_requests(servers):
    def ask(number):
        connection = http.client.HTTPConnection("127.0.0.1", servers["minilm"].port, timeout=120)
        try:
            body = {"data": {"query": f"query {number}", "candidates": [{"id": number, "text": f"text {number}"}]}}
            headers = {"content-type": "application/json", "x-request-id": "the-same"}
            connection.request("POST", "/pooling", json.dumps(body), headers)
            answer = json.loads(connection.getresponse().read())["data"]
            return answer["query"], answer["results"][0]["id"]
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(32)))
    assert found == [(f"query {number}", number) for number in range(32)]


def test_offline_use_gives_what_serving_gives(servers, models):
    done = subprocess.run(
        [vllm_python(), "-c", OFFLINE, models["cross"], json.dumps(RERANK)],
        env=os.environ | IN_PROCESS,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    answers = [json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    assert len(answers) == 2, done.stderr[-2000:]
    first, second = answers
    online = over_vllm(servers["cross"], RERANK)
    assert first == second
    assert [one["index"] for one in first["results"]] == [one["index"] for one in online["results"]]
    scores = [[one["score"] for one in answer["results"]] for answer in (first, online)]
    assert np.allclose(*scores, rtol=0, atol=1e-5)
