"""A server that prefills without a vision tower (image limit 0): it answers what a whole server answers.

The model is a Qwen2.5-VL; those with deepstack levels need their tower in vLLM 0.32.
"""

import pytest

from benchmarks.vllm_fronts import first_time
from chiasm.launch.vllm.process import is_healthy
from tests.e2e.served import ask, fresh
from tests.vllm.crews import MARKS
from tests.vllm.fronts import CODES, FAULTS, asked_about, front, neighbour_of
from tests.vllm.gateways import QUESTION, assert_same
from tests.vllm.pictures import tokens
from tests.vllm.towerless import SIDE

pytestmark = MARKS
OF_EMBEDDINGS = (
    "embedding gone",
    "embedding gone, nothing said about it",
    "a byte of the embedding changed",
    "grid larger than encoded",
)
"""Rows of the failure table that end in different ways; tests/vllm/test_failures_behind_gateway.py has all of them."""


@pytest.fixture
def over_relays(towerless, tmp_path):
    """Another gateway over the split servers."""
    places = towerless.addresses()
    own = (f"engine.model={towerless.model}", "engine.served_name=tiny_vlm", f"routing.worker_token={towerless.token}")
    with front(tmp_path, [places["encode-0"]], places["prefill-0"], *own) as made:
        yield made
    assert all(is_healthy(place) for place in places.values())


def whole_answer(towerless, parts):
    """What the whole server says, asked directly."""
    status, body = towerless.whole.chat(ask(*parts), max_tokens=24, logprobs=True)
    assert status == 200, body
    return tokens(body)


def test_each_server_loads_only_what_it_computes(towerless):
    parts = {
        "encode-0": ("(visual): Qwen2_5_VisionTransformer", "(language_model): StageMissingLayer"),
        "prefill-0": ("(visual): StageMissingLayer(stage_name='vision_tower')", "(language_model): Qwen2ForCausalLM"),
    }
    for worker, said in parts.items():
        own = [line for line in towerless.log.lines if line.startswith(f"{worker}: ")]
        assert [part for part in said if any(part in line for line in own)] == list(said)


@pytest.mark.parametrize("count", [1, 3])
def test_the_answers_are_those_of_a_whole_server_cold_and_warm(towerless, count):
    parts = (*[fresh(color) for color in ("red", "blue", "green")[:count]], QUESTION)
    expected = whole_answer(towerless, parts)
    for _ in range(2):
        assert_same(towerless.split.logprobs(parts), expected)


def test_the_encoder_encodes_and_nobody_else_could(towerless):
    receipt = towerless.split.receipt((fresh("green"), fresh("red"), QUESTION))
    attempts = [(one["stage"], one["worker"], one["outcome"]) for one in receipt["route"]["attempts"]]
    assert attempts == [("encode", "encode-0", "ok"), ("prefill", "prefill-0", "ok")]


@pytest.mark.parametrize("name", [*OF_EMBEDDINGS, "encoder cuts the call off"])
def test_what_goes_wrong_once_is_mended(towerless, over_relays, name):
    asked = asked_about(SIDE)
    expected = whole_answer(towerless, asked)
    with neighbour_of(over_relays):
        over_relays.set(FAULTS[name], first_time)
        assert_same(over_relays.gateway.logprobs(asked), expected)


@pytest.mark.parametrize("name", OF_EMBEDDINGS)
def test_what_always_goes_wrong_ends_with_a_code(over_relays, name):
    with neighbour_of(over_relays):
        over_relays.set(FAULTS[name])
        status, body = over_relays.gateway.chat(asked_about(SIDE))
    assert status >= 400, body
    assert body["error"]["code"] in CODES
