"""Adapters in the engine: greedy tokens against PEFT's merged weights, in every company and every topology."""

import asyncio
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from chiasm.errors import LayoutMismatchError, OverloadedError
from chiasm.settings import AdapterSettings, EngineSettings, MediaSettings
from chiasm.workers.local import LocalWorker
from tests.numeric.adapters import loaded, merged, write_adapter
from tests.numeric.random_models import build, reference_inputs, reference_model
from tests.numeric.test_engine import NUM_TOKENS, Conversation, answer, conversations
from tests.stages import ask, collect, idle, pictures, staged

FAMILY = "qwen2_5_vl"
NUM_ADAPTERS = 16
TARGETS = (("q_proj", "v_proj"), ("down_proj",), ("o_proj", "up_proj"))


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return build(FAMILY, tmp_path_factory.mktemp("models") / FAMILY)


@pytest.fixture(scope="module")
def model(directory):
    return reference_model(FAMILY, directory)


@pytest.fixture(scope="module")
def adapters(model, tmp_path_factory) -> list[Path]:
    """Of all projections but for some, of different ranks and scales."""
    root = tmp_path_factory.mktemp("adapters")
    more = [{"targets": targets, "rank": 2 + 5 * number} for number, targets in enumerate(TARGETS)]
    more += [{"use_rslora": True, "rank": 9}]
    more += [{} for _ in range(NUM_ADAPTERS - len(more))]
    return [write_adapter(model, root / f"adapter-{seed}", seed, **kind) for seed, kind in enumerate(more)]


def start(directory: Path, adapters: list[Path], most_bytes: int = 2**30, **engine) -> LocalWorker:
    return LocalWorker.start(
        directory,
        "model",
        EngineSettings(**({"threads": 1, "max_running": 24} | engine)),
        MediaSettings(),
        lambda what, share: None,
        adapters=AdapterSettings(roots=(str(adapters[0].parent),), max_bytes=most_bytes),
    )


def tokens_of(model, worker: LocalWorker, conversation: Conversation) -> list[int]:
    request, preparer = conversation.request("reference"), worker.preparer
    plans = [preparer.plan(item.width, item.height) for item in request.items]
    token_ids = worker._engine.language.planner.plan(request, plans).prompt.token_ids.tolist()
    shown = [part for part in conversation.parts if isinstance(part, int)]
    inputs = reference_inputs(FAMILY, token_ids, [preparer.prepare(conversation.pictures[number]) for number in shown])
    with torch.no_grad():
        output = model.generate(
            **inputs, max_new_tokens=NUM_TOKENS, min_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=None
        )
    return output[0, len(token_ids) :].tolist()


@pytest.fixture(scope="module")
def mixed(directory, model, adapters) -> list[tuple[Conversation, int | None, list[int]]]:
    """Conversations, the number of the adapter of each, and what transformers says with its weights merged."""
    all_, worker = conversations(FAMILY), start(directory, adapters)
    chosen = [None, *range(NUM_ADAPTERS), None, 0, 5]
    base = [tokens_of(model, worker, conversation) for conversation in all_]
    found = []
    for place, number in enumerate(chosen):
        at = place % len(all_)
        tokens = base[at] if number is None else tokens_of(merged(model, adapters[number]), worker, all_[at])
        assert number is None or tokens != base[at], f"adapter {number} must matter"
        found.append((all_[at], number, tokens))
    asyncio.run(worker.aclose())
    return found


async def said(worker: LocalWorker, adapters: list[Path], mixed) -> list[list[int]]:
    refs = [await loaded(worker, one) for one in adapters]
    requests = [
        replace(conversation.request(str(place)), adapter=None if number is None else refs[number])
        for place, (conversation, number, _) in enumerate(mixed)
    ]
    return [tokens for tokens, _ in await asyncio.gather(*(answer(worker, request) for request in requests))]


async def until_running(worker: LocalWorker) -> None:
    async with asyncio.timeout(20):
        while True:
            if worker.stats().num_running:
                return
            await asyncio.sleep(0)


@pytest.mark.parametrize("way", [{}, {"decoder": "torch"}, {"max_step_tokens": 24, "threads": 2}], ids=str)
async def test_a_mixed_batch_of_sixteen_says_what_merged_weights_say(directory, adapters, mixed, way):
    worker = start(directory, adapters, **way)
    try:
        for state in ("cold", "warm"):
            assert await said(worker, adapters, mixed) == [tokens for *_, tokens in mixed], state
        await idle(worker)
        assert worker.stats().totals["adapter_loads"] == NUM_ADAPTERS
        assert worker.stats().totals["cached_prompt_tokens"] > 0
        assert worker.stats().totals["encoded_items"] == 3, "embeddings are shared with the base model"
    finally:
        await worker.aclose()


async def test_adapters_beyond_the_budget_come_and_go_between_requests(directory, adapters, mixed):
    worker = start(directory, adapters)
    try:
        refs = [await loaded(worker, one) for one in adapters]
        assert worker._engine.language.adapters.num_bytes > 2 * 2**20
    finally:
        await worker.aclose()
    worker = start(directory, adapters, most_bytes=2**20)
    try:
        for conversation, number, tokens in mixed:
            request = replace(conversation.request("one"), adapter=None if number is None else refs[number])
            assert (await answer(worker, request))[0] == tokens
        store = worker._engine.language.adapters
        assert store.num_bytes <= 2**20
        assert store.num_evicted > NUM_ADAPTERS / 2
    finally:
        await worker.aclose()


@pytest.mark.parametrize("topology", ["agg", "e-pd", "ep-d", "e-p-d"])
async def test_every_topology_says_the_same_with_an_adapter(directory, adapters, model, topology):
    worker = start(directory, adapters)
    ref = await loaded(worker, adapters[7])
    request = replace(ask("what is it?", *pictures(3, 2)), adapter=ref)
    expected = (await answer(worker, request))[0]
    base = (await answer(worker, replace(request, adapter=None)))[0]
    await worker.aclose()
    assert expected != base
    settings = AdapterSettings(roots=(str(adapters[0].parent),))
    async with staged(directory, topology, adapters=settings) as stages:
        for _ in range(2):
            assert (await stages.run(request)).tokens[0] == expected
            assert (await stages.run(replace(request, adapter=None))).tokens[0] == base


async def test_keys_and_values_of_another_adapter_are_refused(directory, adapters):
    settings = AdapterSettings(roots=(str(adapters[0].parent),))
    async with staged(directory, "ep-d", adapters=settings) as stages:
        refs = [await loaded(stages.prefill, one) for one in adapters[6:8]]
        request = ask("what is it?", *pictures(3, 1))
        for made, taken in ((refs[0], refs[1]), (refs[0], None), (None, refs[0])):
            kv = await stages.prefilled(replace(request, adapter=made))
            with pytest.raises(LayoutMismatchError):
                await answer(stages.decode, replace(request, adapter=taken, kv=kv))
        for worker in stages.workers:
            await idle(worker)


async def test_files_that_differ_between_workers_are_refused(directory, adapters):
    worker = start(directory, adapters)
    try:
        ref = await loaded(worker, adapters[7])
        meant = replace(ref, revision="0" * 32)
        with pytest.raises(LayoutMismatchError, match="revision"):
            await answer(worker, replace(ask("hello"), adapter=meant))
        await idle(worker)
    finally:
        await worker.aclose()


async def test_an_adapter_that_is_unloaded_in_use_finishes_its_requests(directory, adapters):
    worker = start(directory, adapters)
    store = worker._engine.language.adapters
    try:
        ref = await loaded(worker, adapters[7])
        request = replace(ask("hello", max_tokens=48), adapter=ref)
        expected = (await collect(worker, request)).tokens[0]
        running = asyncio.create_task(collect(worker, request))
        await until_running(worker)
        await worker.unload_adapter(ref, 5)
        assert store.num_resident == 1, "in use"
        assert (await running).tokens[0] == expected
        assert (store.num_resident, store.num_bytes) == (0, 0)
    finally:
        await worker.aclose()


async def test_adapters_in_use_are_not_pushed_out(directory, adapters, model, tmp_path):
    root = tmp_path / "large"
    large = [write_adapter(model, root / f"large-{seed}", seed, rank=32) for seed in range(2)]
    worker = start(directory, large, most_bytes=2**20)
    try:
        refs = [await loaded(worker, one) for one in large[:1]]
        assert 2**19 < worker._engine.language.adapters.num_bytes <= 2**20, "one fits, two do not"
        running = asyncio.create_task(collect(worker, replace(ask("hello", max_tokens=64), adapter=refs[0])))
        await until_running(worker)
        with pytest.raises(OverloadedError, match="in use"):
            await loaded(worker, large[1])
        await running
        await loaded(worker, large[1])
        assert worker.stats().totals["adapters_evicted"] == 1
        assert len((await collect(worker, replace(ask("hello"), adapter=refs[0]))).tokens[0]) == 8, (
            "it comes back by itself"
        )
    finally:
        await worker.aclose()
