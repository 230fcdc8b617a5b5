"""Chiasm over one vLLM server that it started, with two engines behind it.

The answers are the embedded engine's, vLLM's refusals are in Chiasm's words, and each engine is a target of its own.
"""

import json
import os
import signal
import time

import openai
import pytest

from tests.e2e.served import ask
from tests.vllm.crews import MARKS
from tests.vllm.gateways import BLUE, PROMPTS, QUESTION, RED, assert_same

pytestmark = MARKS
RANKS = {"worker-0", "worker-0.1"}
SCHEMA = {
    "type": "object", "properties": {"color": {"enum": ["red", "blue"]}}, "required": ["color"],
    "additionalProperties": False,
}  # fmt: skip


@pytest.fixture
def over_vllm(aggregated):
    return aggregated


@pytest.mark.parametrize("name", PROMPTS)
def test_tokens_and_logprobs_are_those_of_the_embedded_engine_cold_and_warm(over_vllm, embedded, name):
    expected = embedded.logprobs(PROMPTS[name])
    for _ in range(2):
        assert_same(over_vllm.logprobs(PROMPTS[name]), expected)


@pytest.mark.parametrize("name", PROMPTS)
def test_vllm_asked_without_chiasm_says_the_same(over_vllm, embedded, name):
    assert_same(over_vllm.logprobs_of("worker-0", PROMPTS[name]), embedded.logprobs(PROMPTS[name]))


def test_a_stream_has_the_same_text_and_ends_with_counts_and_a_receipt(over_vllm, embedded):
    _, whole = embedded.chat((RED, BLUE, QUESTION))
    *events, last = over_vllm.stream(
        (RED, BLUE, QUESTION), stream_options={"include_usage": True}, chiasm={"receipt": True}
    )
    text = "".join(choice["delta"].get("content", "") for event in events for choice in event["choices"])
    assert text == whole["choices"][0]["message"]["content"]
    assert last["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]
    assert last["usage"]["prompt_tokens_details"]["image_tokens"] == 2 * 36
    receipt = last["chiasm"]["receipt"]
    assert receipt["stages_s"]["prefill"] > 0
    (attempt,) = receipt["route"]["attempts"]
    assert attempt.pop("worker") in RANKS
    assert attempt == {"stage": "prefill", "outcome": "ok", "items": []}


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"stop": ["a", "e"]},
        {"max_tokens": 3},
        {"min_tokens": 6},
        {"logit_bias": {"373": -100}},
        {"top_logprobs": 3, "logprobs": True},
        {"frequency_penalty": 1.0, "presence_penalty": 0.5},
    ],
    ids=str,
)
def test_fields_mean_what_they_mean_with_the_embedded_engine(over_vllm, embedded, fields):
    def seen(answer):
        status, body = answer
        assert status == 200, body
        return [
            (choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]) for choice in body["choices"]
        ], {name: body["usage"][name] for name in ("prompt_tokens", "completion_tokens")}

    parts = (RED, "Describe the image.")
    assert seen(over_vllm.chat(parts, **fields)) == seen(embedded.chat(parts, **fields))


def test_an_answer_can_be_held_to_a_schema(over_vllm, embedded):
    response_format = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
    (_, found), (_, expected) = (
        one.chat((RED, "What color is the shape?"), response_format=response_format) for one in (over_vllm, embedded)
    )
    text = found["choices"][0]["message"]["content"]
    assert json.loads(text) == json.loads(expected["choices"][0]["message"]["content"])
    assert " " not in text
    assert "\n" not in text


def test_texts_are_completed_as_with_the_embedded_engine(over_vllm, embedded):
    body = {"model": "tiny_vlm", "prompt": "Hello", "temperature": 0, "max_tokens": 6, "logprobs": 2}
    (status, found), (_, expected) = over_vllm.post("/v1/completions", body), embedded.post("/v1/completions", body)
    assert status == 200, found
    assert found["choices"][0]["text"] == expected["choices"][0]["text"]
    pairs = zip(*(one["choices"][0]["logprobs"]["token_logprobs"] for one in (found, expected)), strict=True)
    assert all(abs(one - other) < 1e-4 for one, other in pairs)


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"messages": ask("word " * 9000)}, 400, "context_length_exceeded"),
        ({"messages": ask("<|image_pad|>")}, 400, "invalid_request"),
        ({"messages": [{"role": "user", "content": [{"type": "image_embeds", "image_embeds": "x"}]}]}, 400,
         "media_refused"),
        ({"ec_transfer_params": {"a": {}}}, 400, "unsupported_feature"),
        ({"kv_transfer_params": {"do_remote_prefill": True}}, 400, "unsupported_feature"),
        ({"mm_processor_kwargs": {"min_pixels": 1}}, 400, "unsupported_feature"),
        ({"model": "another"}, 404, "model_not_found"),
    ],
    ids=str,
)  # fmt: skip
def test_what_must_not_reach_vllm_does_not_and_what_it_refuses_has_a_code(over_vllm, change, status, code):
    found, body = over_vllm.chat((RED, QUESTION), **change)
    assert (found, body["error"]["code"]) == (status, code)


def test_the_official_client_works(over_vllm):
    with (
        openai.OpenAI(base_url=f"{over_vllm.address}/v1", api_key="none", max_retries=0, timeout=300) as client,
        client.chat.completions.stream(model="tiny_vlm", messages=ask(RED, QUESTION), temperature=0) as stream,
    ):
        answer = stream.get_final_completion()
    assert "red" in answer.choices[0].message.content.lower()


@pytest.mark.vllm(is_last=True)
def test_a_server_that_is_killed_comes_back(over_vllm):
    before = over_vllm.chat((RED, QUESTION))[1]["choices"]
    os.killpg(over_vllm.backend.supervisor.pids["worker-0"], signal.SIGKILL)
    deadline_s = time.monotonic() + 500
    while (answer := over_vllm.chat((RED, QUESTION)))[0] != 200:
        assert answer[1]["error"]["code"] in ("engine_dead", "deadline_exceeded"), answer
        assert time.monotonic() < deadline_s
        time.sleep(0.5)
    assert answer[1]["choices"] == before
    assert over_vllm.backend.supervisor.num_restarts == 1
