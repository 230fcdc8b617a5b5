"""Servers that somebody else started, each transport of Chiasm's connector, through the gateway."""

import pytest

from tests.e2e.served import picture
from tests.vllm.crews import MARKS, workers_file
from tests.vllm.gateways import PROMPTS, QUESTION, assert_same, gateway

pytestmark = MARKS


@pytest.fixture(params=["shm", "tcp"])
def over_fleet(fleet, request, tmp_path):
    """A gateway that never has the consumer encode."""
    listed = {
        "e": (fleet.encoder(request.param).url, '["encode"]'),
        "pd": (fleet.consumer.url, '["prefill", "decode"]'),
    }
    own = ("engine.kind=vllm", "routing.topology=e-pd", "routing.local_encode=never")
    with gateway(*own, workers_file(tmp_path, listed)) as made:
        yield made


def test_the_answers_are_those_of_the_embedded_engine(over_fleet, embedded):
    for name in ("one", "large", "repeats", "interleaved"):
        assert_same(over_fleet.logprobs(PROMPTS[name]), embedded.logprobs(PROMPTS[name]))
    receipt = over_fleet.receipt((picture("blue", shift=31), QUESTION))
    attempts = [(one["stage"], one["worker"], one["outcome"]) for one in receipt["route"]["attempts"]]
    assert attempts == [("encode", "e", "ok"), ("prefill", "pd", "ok")]
