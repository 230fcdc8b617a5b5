"""A real worker forgets media and scopes: in its caches, in what it offers, and what requests under way would leave."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from chiasm.protocol.deletion import Deletion
from chiasm.protocol.worker import EncodeRequest
from tests.conditions import until
from tests.memory_transport import SharedTensors
from tests.numeric.random_models import build
from tests.stages import ask, collect, idle, pictures, slow_forward, staged, start

QUESTION = "what may this picture be? is it "


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return build("qwen3_vl", tmp_path_factory.mktemp("models") / "qwen3_vl")


@pytest.fixture
async def worker(directory):
    worker = start(directory, shared=SharedTensors(), max_running=1)
    yield worker
    await idle(worker)
    await worker.aclose()


def held(worker) -> tuple[int, int, int]:
    stats = worker.stats()
    return stats.num_cached_embeddings, stats.num_cached_blocks, stats.num_offered_tensors


async def forgotten(worker, **what):
    (deleted,) = await worker.forget(Deletion(**what), 30.0)
    assert (deleted.worker, deleted.error) == (worker.info.name, None)
    return deleted.num_embeddings, deleted.num_blocks, deleted.num_offers, deleted.num_pending


async def test_a_medium_goes_from_all_tiers_and_another_stays(worker):
    a, b = pictures(1, 2)
    for salt in ("", "ours"):
        for item in (a, b):
            await worker.encode(EncodeRequest(request_id="e", items=(item,), cache_salt=salt))
            await collect(worker, replace(ask(QUESTION, item), cache_salt=salt))
    embeddings, blocks, offers = held(worker)
    assert (embeddings, offers) == (4, 4)
    gone = await forgotten(worker, identity=a.identity)
    assert gone[0::2] == (2, 2)
    assert gone[3] == 0
    assert held(worker) == (2, blocks - gone[1], 2)
    assert gone[1] > 0
    encoded = worker.stats().totals["encoded_items"]
    assert (await collect(worker, ask(QUESTION, b))).end.usage.num_cached_tokens > 0
    assert worker.stats().totals["encoded_items"] == encoded
    await collect(worker, ask(QUESTION, a))
    assert worker.stats().totals["encoded_items"] == encoded + 1
    assert await forgotten(worker, identity="f" * 64) == (0, 0, 0, 0)


async def test_a_scope_goes_with_its_words_and_no_other(worker):
    (item,) = pictures(2, 1)
    text = ask("words and words " * 10)
    for salt in ("ours", "theirs"):
        await collect(worker, replace(text, cache_salt=salt))
        await collect(worker, replace(ask(QUESTION, item), cache_salt=salt))
    before = held(worker)
    gone = await forgotten(worker, cache_salt="ours")
    assert held(worker) == (1, before[1] - gone[1], 0)
    assert (await collect(worker, replace(text, cache_salt="ours"))).end.usage.num_cached_tokens == 0
    assert (await collect(worker, replace(text, cache_salt="theirs"))).end.usage.num_cached_tokens > 0


async def test_what_requests_under_way_use_is_pending_and_they_leave_nothing(worker, monkeypatch):
    (item,) = pictures(3, 1)
    alone = await collect(worker, ask(QUESTION, item, max_tokens=12))
    slow_forward(worker, monkeypatch, 0.02)
    running = asyncio.create_task(collect(worker, ask(QUESTION, item, max_tokens=60)))
    await until(lambda: worker.stats().num_running)
    waiting = asyncio.create_task(collect(worker, ask(QUESTION, item, max_tokens=12)))
    await until(lambda: worker.stats().num_waiting and worker.stats().num_pinned_blocks)
    gone = await forgotten(worker, identity=item.identity)
    assert gone[3] > 0
    monkeypatch.undo()
    assert len((await running).tokens[0]) == 60
    assert (await waiting).tokens == alone.tokens, "what it counted on was there"
    await idle(worker)
    await until(lambda: held(worker) == (0, held(worker)[1], 0))
    assert (await collect(worker, ask(QUESTION, item))).end.usage.num_visual_tokens > 0
    assert worker.stats().totals["encoded_items"] == 2


async def test_an_encoding_under_way_reaches_who_waits_for_it_and_is_not_kept(worker, monkeypatch):
    (item,) = pictures(4, 1)
    slow_forward(worker, monkeypatch, 0.02)
    busy = asyncio.create_task(collect(worker, ask("busy", max_tokens=30)))
    await until(lambda: worker.stats().num_running)
    asked = asyncio.create_task(worker.encode(EncodeRequest(request_id="e", items=(item,))))
    await until(lambda: worker._embeddings.num_in_flight)
    gone = await forgotten(worker, identity=item.identity)
    monkeypatch.undo()
    await busy
    assert len((await asked).handles) == 1
    await until(lambda: worker.stats().num_cached_embeddings == 0)
    assert gone == (0, 0, 0, 1)


async def test_keys_and_values_on_their_way_are_withdrawn(directory):
    async with staged(directory, "ep-d") as stages:
        (item,) = pictures(5, 1)
        await stages.prefilled(ask(QUESTION, item))
        kept = await stages.prefilled(ask("only words"))
        dropped = await stages.prefilled(ask("words that nobody will read"))
        assert await forgotten(stages.prefill, offer=dropped.key) == (0, 0, 1, 0)
        assert (await forgotten(stages.prefill, identity=item.identity))[2] == 1
        assert stages.prefill.stats().num_offered_tensors == 1
        assert len((await collect(stages.decode, replace(ask("only words"), kv=kept))).tokens[0]) == 8
        assert len((await stages.run(ask(QUESTION, item))).tokens[0]) == 8


async def test_embeddings_are_not_reused_after_their_time(directory):
    worker = start(directory, shared=SharedTensors(), prefix_cache_bytes=0, embedding_ttl_s=0.05)
    (item,) = pictures(6, 1)
    await collect(worker, ask(QUESTION, item))
    await until(lambda: worker.stats().num_cached_embeddings == 0)
    await collect(worker, ask(QUESTION, item))
    assert worker.stats().totals["encoded_items"] == 2
    await worker.aclose()
