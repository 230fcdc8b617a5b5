"""Keys and values from one vLLM server to another: started by Chiasm, over NIXL on CPU."""

import asyncio
import os
import signal

import pytest

from chiasm.routing.passage import Passage
from tests.conditions import until
from tests.e2e.served import picture
from tests.vllm.adapters import operate, options, said
from tests.vllm.crews import MARKS, OPERATED
from tests.vllm.gateways import PROMPTS, QUESTION, assert_same, gateway
from tests.vllm.test_deletion import QUESTION as LONG_QUESTION
from tests.vllm.test_deletion import cached, delete

pytestmark = MARKS


@pytest.fixture
def over_vllm(disaggregated):
    return disaggregated


@pytest.mark.parametrize("name", PROMPTS)
def test_the_answers_are_those_of_the_embedded_engine_cold_and_warm(over_vllm, embedded, name):
    expected = embedded.logprobs(PROMPTS[name])
    for _ in range(2):
        assert_same(over_vllm.logprobs(PROMPTS[name]), expected)


def test_each_stage_has_its_server(over_vllm):
    receipt = over_vllm.receipt((picture("green", shift=21), QUESTION))
    attempts = [(one["stage"], one["worker"], one["outcome"]) for one in receipt["route"]["attempts"]]
    assert attempts == [("encode", "encode-0", "ok"), ("prefill", "prefill-0", "ok"), ("decode", "decode-0", "ok")]
    assert receipt["route"]["path"] == "e-p-d"


def test_several_choices_come_from_the_prefilling_server(over_vllm, embedded):
    """vLLM frees a prompt's keys and values when one choice has taken them, so that others might read another's."""
    parts = (picture("red", shift=3), "Describe the image.")
    found, expected = (
        [choice["message"]["content"] for choice in one.chat(parts, n=2)[1]["choices"]] for one in (over_vllm, embedded)
    )
    assert found == expected
    route = over_vllm.receipt((picture("red", shift=5), "Describe the image."), n=2)["route"]
    assert [(one["stage"], one["worker"]) for one in route["attempts"]] == [
        ("encode", "encode-0"),
        ("prefill", "prefill-0"),
    ]
    assert route["path"] == "e-pd"
    assert "can be taken once, not for 2 choices" in route["reason"]


def test_adapters_go_with_a_prompt_from_server_to_server(over_vllm, adapters):
    """Keys and values that one adapter made are taken by the server that decodes with the same one."""
    later = {"name": "later", "path": f"{adapters}/later"}
    with gateway(OPERATED, *options(adapters)) as embedded:
        assert operate(embedded, "POST", body=later)[0] == 200
        models = ("tiny_vlm", "first", "later")
        expected = {(model, name): said(embedded, PROMPTS[name], model) for model in models for name in ("text", "two")}
    assert len(set(expected.values())) == len(expected)
    assert operate(over_vllm, "POST", body=later)[0] == 200
    for (model, name), text in expected.items():
        assert said(over_vllm, PROMPTS[name], model) == text, (model, name)
    assert operate(over_vllm, "DELETE", "/later")[0] == 200
    assert over_vllm.chat(PROMPTS["text"], model="later")[0] == 404


def test_a_deleted_picture_is_in_no_stages_cache(over_vllm):
    shown = picture("green", shift=93)
    expected = over_vllm.chat((shown, LONG_QUESTION))
    assert cached(over_vllm.chat((shown, LONG_QUESTION))) >= 128
    report = delete(over_vllm, shown)
    assert report["complete"], report
    told = {one["worker"]: one for one in report["workers"]}
    assert set(told) == {"router", "encode-0", "prefill-0", "decode-0"}
    assert told["encode-0"]["num_offers"] >= 1
    again = over_vllm.chat((shown, LONG_QUESTION))
    assert cached(again) == 0
    assert again[1]["choices"] == expected[1]["choices"]
    assert cached(over_vllm.chat((shown, LONG_QUESTION))) >= 128


@pytest.mark.vllm(is_last=True)
def test_keys_and_values_that_went_with_their_server_cost_one_request_time_and_no_other_server(
    over_vllm, embedded, monkeypatch
):
    """It dies between its answer and the moment at which the decoding server takes them."""
    pids, prefill, killed = over_vllm.backend.supervisor.pids, Passage._prefill, []

    async def and_die(self, worker, *rest):
        finished = await prefill(self, worker, *rest)
        if not killed:
            killed.append(worker)
            os.killpg(pids[worker], signal.SIGKILL)
        return finished

    monkeypatch.setattr(Passage, "_prefill", and_die)
    parts = (picture("yellow", shift=51), QUESTION)
    status, body = over_vllm.chat(parts)
    assert killed == ["prefill-0"]
    assert status == 200 or body["error"]["code"] in ("engine_dead", "deadline_exceeded"), body
    asyncio.run(until(lambda: over_vllm.chat(parts)[0] == 200, 600))
    assert_same(over_vllm.logprobs(parts), embedded.logprobs(parts))
    assert over_vllm.backend.supervisor.pids["decode-0"] == pids["decode-0"]
    assert over_vllm.backend.supervisor.pids["prefill-0"] != pids["prefill-0"]
