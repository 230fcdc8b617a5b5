"""Split stages give the tokens of one whole worker: cold and warm, chunked, sampled, and with several choices."""

import asyncio
from pathlib import Path

import pytest

from tests.numeric.random_models import build
from tests.numeric.test_engine import conversations
from tests.stages import Answer, Stages, ask, collect, idle, pictures, staged

FAMILIES = ("qwen3_vl", "idefics3", "qwen3")
TOPOLOGIES = ("e-pd", "e-p-d", "ep-d")


@pytest.fixture(scope="module", params=FAMILIES)
def family(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def directory(family, tmp_path_factory) -> Path:
    return build(family, tmp_path_factory.mktemp("models") / family)


async def gathered(stages: Stages, requests) -> list[Answer]:
    return await asyncio.gather(*(stages.run(request) for request in requests))


async def test_every_topology_gives_the_tokens_of_the_whole_worker(family, directory):
    requests = [conversation.request(str(i)) for i, conversation in enumerate(conversations(family))]
    async with staged(directory, "agg") as whole:
        expected = [answer.tokens for answer in await gathered(whole, requests)]
    for topology in TOPOLOGIES if family != "qwen3" else ("p-d",):
        for engine in ({}, {"max_step_tokens": 24, "prefix_cache_bytes": 0, "embedding_cache_bytes": 0}):
            async with staged(directory, topology, **engine) as stages:
                for state in ("cold", "warm"):
                    answers = await gathered(stages, requests)
                    assert [answer.tokens for answer in answers] == expected, (topology, engine, state)
                for worker in stages.workers:
                    await idle(worker)
                if stages.decode is not stages.prefill:
                    assert stages.decode.stats().totals["prefill_tokens"] == 2 * len(requests)
                    assert stages.decode.stats().totals["decoded_items"] == 0


@pytest.fixture(scope="module")
def qwen(tmp_path_factory) -> Path:
    return build("qwen3_vl", tmp_path_factory.mktemp("models") / "qwen3_vl")


MANY = {"places": ("one", 0, "two", 1, 0, "three", 2, 2, 3, "end", 1), "max_tokens": 16}
REQUESTS = {
    "six places of four pictures": {"temperature": 0, **MANY},
    "seeded sampling": {"temperature": 1.0, "seed": 7, **MANY},
    "choices with log probabilities": {"temperature": 0.8, "seed": 3, "n": 3, "num_top_logprobs": 4, **MANY},
    "penalties that see the prompt": {"temperature": 0, "repetition_penalty": 1.3, "frequency_penalty": 0.5, **MANY},
}


@pytest.mark.parametrize("kind", REQUESTS)
async def test_sampling_goes_on_as_if_the_prompt_had_been_computed_here(qwen, kind):
    request = ask("what is the difference?", *pictures(21, 4), **REQUESTS[kind])
    async with staged(qwen, "agg") as whole:
        expected = await whole.run(request)
    assert sorted(expected.tokens) == list(range(request.sampling.n))
    async with staged(qwen, "e-p-d", max_step_tokens=32) as stages:
        for _ in range(2):
            answer = await stages.run(request)
            assert answer.tokens == expected.tokens
            ours = [(one.token_id, pytest.approx(one.logprob, abs=1e-4)) for one in expected.logprobs]
            assert [(one.token_id, one.logprob) for one in answer.logprobs] == ours
            assert answer.end.usage.num_visual_tokens == expected.end.usage.num_visual_tokens


async def test_what_was_taken_serves_later_prompts_with_the_same_start(qwen):
    (item,) = pictures(22, 1)
    first, second = ask("what is this? " * 4, item), ask("what is this? " * 3 + "and who?", item)
    async with staged(qwen, "agg") as other:
        expected = await other.run(second)
    async with staged(qwen, "ep-epd") as stages:
        prefill, whole = stages.workers
        taken = await Stages(prefill, prefill, whole, stages.shared, stages.workers).run(first)
        blocks = whole.stats().num_cached_blocks
        assert blocks >= taken.end.usage.num_prompt_tokens // 16
        answer = await collect(whole, second)
        assert answer.tokens == expected.tokens
        assert answer.end.usage.num_cached_tokens >= 48
        assert whole.stats().totals["decoded_items"] == 0
