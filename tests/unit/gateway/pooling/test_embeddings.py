"""Embeddings in OpenAI's and Cohere's forms."""

import base64

import numpy as np
import pytest

from chiasm.protocol.pooling.work import TextInput, TokensInput
from tests.asgi import call

PATH = "/v1/embeddings"


async def ask(app, path=PATH, **body):
    return await call(app, path, body)


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("a", (TextInput("a"),)),
        (["a", "bc"], (TextInput("a"), TextInput("bc"))),
        ([1, 2], (TokensInput((1, 2)),)),
        ([[1], [2, 3]], (TokensInput((1,)), TokensInput((2, 3)))),
        ("", (TextInput(""),)),
    ],
)
async def test_the_four_forms_of_inputs(app, worker, given, inputs):
    made = await ask(app, input=given)
    assert made.status == 200
    assert worker.pooled[0].inputs == inputs
    assert [entry["index"] for entry in made.json["data"]] == list(range(len(inputs)))


async def test_the_answer(app):
    made = await ask(app, model="fake", input=["abc", "x"], user="somebody")
    body = made.json
    assert (body["object"], body["model"], body["dtype"]) == ("list", "fake", "float32")
    assert body["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
    assert body["data"][0] == {"object": "embedding", "index": 0, "embedding": [3.0, 0.5, -1.0, 0.25]}
    assert made.headers["x-chiasm-dtype"] == "float32"
    assert body["id"] == made.headers["x-request-id"]
    assert "truncated" not in body


async def test_base64_is_little_endian_float32(app):
    made = await ask(app, input="abc", encoding_format="base64")
    data = base64.b64decode(made.json["data"][0]["embedding"])
    assert np.frombuffer(data, "<f4").tolist() == [3.0, 0.5, -1.0, 0.25]


async def test_parameters_reach_the_worker(app, worker):
    await ask(app, input="a", dimensions=2, truncate_prompt_tokens=5, truncation_side="left", use_activation=False)
    params = worker.pooled[0].params
    assert (params.dimensions, params.max_tokens, params.truncate, params.normalize) == (2, 5, "start", False)
    await ask(app, input="a", truncate_prompt_tokens=-1, prompt_name="query", add_special_tokens=False)
    params = worker.pooled[1].params
    assert (params.max_tokens, params.truncate, params.add_special_tokens) == (None, "end", False)
    assert worker.pooled[1].inputs == (TextInput("a", "query"),)


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"input": []}, "invalid_request", "/input"),
        ({"input": ["a", 1]}, "invalid_request", "/input"),
        ({"input": [[1], []]}, "invalid_request", "/input/1"),
        ({"input": [-1]}, "invalid_request", "/input/0"),
        ({}, "invalid_request", "/input"),
        ({"input": "a", "messages": [{"role": "user", "content": "a"}]}, "invalid_request", "/input"),
        ({"messages": [{"role": "user", "content": "a"}]}, "unsupported_feature", "/messages"),
        ({"input": "a", "dimensions": 5}, "invalid_request", "/dimensions"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "invalid_request", "/truncate_prompt_tokens"),
        ({"input": "a", "dimensions": 0}, "invalid_request", "/dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "invalid_request", "/encoding_format"),
        ({"input": "a", "inptu": "a"}, "invalid_request", "/inptu"),
        ({"input": "a", "priority": 3}, "unsupported_feature", "/priority"),
        ({"input": "a", "prompt_name": "poem"}, "invalid_request", "/prompt_name"),
        ({"input": "a", "model": "other"}, "model_not_found", "/model"),
        ({"input": ["a", "long"]}, "context_length_exceeded", "/input/1"),
        ({"input": "long"}, "context_length_exceeded", "/input"),
        ({"input": ["a"] * 9}, "request_too_large", None),
        ({"input": "a", "chiasm": {"timeout_s": 1e6}}, "invalid_request", "/chiasm/timeout_s"),
        ({"input": "break"}, "engine_step_failed", None),
    ],
)
async def test_what_is_refused(app, body, code, param):
    made = await call(app, PATH, body)
    assert (made.error["code"], made.error["param"]) == (code, param)
    assert made.status == {"model_not_found": 404, "request_too_large": 413, "engine_step_failed": 500}.get(code, 400)


async def test_what_was_cut_is_said(app):
    made = await ask(app, input=["a", "long one"], truncate_prompt_tokens=-1)
    assert made.json["truncated"] == [1]
    assert made.headers["x-chiasm-truncated-inputs"] == "1"


async def test_the_receipt_has_the_stages(app):
    made = await ask(app, input="a", chiasm={"receipt": True})
    receipt = made.json["chiasm"]["receipt"]
    assert (receipt["outcome"], receipt["num_prompt_tokens"], receipt["ttft_s"]) == ("finished", 3, None)
    assert "forward" in receipt["stages_s"]
    text = (await call(app, "/metrics")).body.decode()
    assert 'chiasm_stage_seconds_count{stage="forward"} 1.0' in text
    assert 'chiasm_requests_total{endpoint="embeddings",outcome="finished"} 1.0' in text


async def test_cohere(app, worker):
    made = await ask(
        app, "/v2/embed", model="fake", texts=["abc", "long"], input_type="search_query",
        embedding_types=["float", "base64"], output_dimension=3,
    )  # fmt: skip
    body = made.json
    assert body["embeddings"]["float"][0] == [3.0, 0.5, -1.0, 0.25]
    assert len(body["embeddings"]["base64"]) == 2
    assert (body["texts"], body["truncated"], body["response_type"]) == (["abc", "long"], [1], "embeddings_by_type")
    assert worker.pooled[0].inputs[0] == TextInput("abc", "query")
    assert worker.pooled[0].params.dimensions == 3


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"texts": []}, "/texts"),
        ({"texts": ["a"], "output_dimension": 5}, "/output_dimension"),
        ({"texts": ["a", "long"], "truncate": "NONE"}, "/texts/1"),
        ({"texts": ["a"], "embedding_types": ["int8"]}, "/embedding_types/0"),
        ({"texts": ["a"], "images": ["data:,"]}, "/texts"),
        ({"texts": ["a"], "input_type": "query"}, "/input_type"),
    ],
)
async def test_what_coheres_form_refuses(app, body, param):
    made = await call(app, "/v2/embed", body)
    assert (made.status, made.error["param"]) == (400, param)


@pytest.mark.parametrize("kind", ["search_document", "search_query", "classification", "clustering", None])
async def test_coheres_input_types_are_taken(app, kind):
    assert (await call(app, "/v2/embed", {"texts": ["a"], "input_type": kind})).status == 200


async def test_another_input_type_is_answered_with_coheres(app):
    made = await call(app, "/v2/embed", {"texts": ["a"], "input_type": "query"})
    assert made.error["code"] == "invalid_request"
    assert "'search_query'" in made.error["hint"]
