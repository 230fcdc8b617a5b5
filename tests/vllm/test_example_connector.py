"""vLLM's own example connector behind Chiasm: answers are the same, which comparisons with it rest on."""

import pytest

from tests.e2e.served import fresh
from tests.vllm.crews import MARKS
from tests.vllm.gateways import PROMPTS, QUESTION, assert_same, gateway

pytestmark = MARKS


@pytest.fixture(scope="module")
def over_vllm():
    """An encoder and a server for the rest, started by Chiasm."""
    own = ("engine.kind=vllm", "routing.topology=e-pd", "routing.local_encode=never", "vllm.ec_connector=example")
    with gateway(*own) as made:
        yield made


@pytest.mark.parametrize("name", PROMPTS)
def test_the_answers_are_those_of_the_embedded_engine_cold_and_warm(over_vllm, embedded, name):
    expected = embedded.logprobs(PROMPTS[name])
    for _ in range(2):
        assert_same(over_vllm.logprobs(PROMPTS[name]), expected)


def test_embeddings_go_from_server_to_server(over_vllm):
    receipt = over_vllm.receipt((fresh("green"), QUESTION))
    attempts = [(one["stage"], one["worker"], one["outcome"]) for one in receipt["route"]["attempts"]]
    assert attempts == [("encode", "encode-0", "ok"), ("prefill", "prefill-0", "ok")]
