"""Keys and values from one vLLM server to another: started by Chiasm, over NIXL on CPU."""

import pytest

from tests.e2e.served import picture
from tests.vllm.crews import MARKS
from tests.vllm.gateways import PROMPTS, QUESTION, assert_same

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


def test_several_choices_come_from_the_decoding_server(over_vllm, embedded):
    parts = (picture("red", shift=3), "Describe the image.")
    found, expected = (
        [choice["message"]["content"] for choice in one.chat(parts, n=2)[1]["choices"]] for one in (over_vllm, embedded)
    )
    assert found == expected
