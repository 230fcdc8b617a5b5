"""Pictures whose keys and values, or embeddings, are there already are neither decoded nor encoded nor transferred."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from chiasm.errors import UnsupportedFeatureError
from chiasm.protocol.worker import EncodeRequest
from tests.conditions import until
from tests.memory_transport import SharedTensors
from tests.numeric.random_models import build
from tests.stages import ask, collect, idle, pictures, slow_forward, start


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return build("qwen3_vl", tmp_path_factory.mktemp("models") / "qwen3_vl")


@pytest.fixture
async def running(directory):
    workers = []

    def make(**engine):
        workers.append(start(directory, shared=SharedTensors(), **engine))
        return workers[-1]

    yield make
    for worker in workers:
        await idle(worker)
        await worker.aclose()


def avoided(worker) -> tuple[float, float, float, float]:
    totals = worker.stats().totals
    names = ("decoded_items", "encoded_items", "encodes_avoided_prefix", "encodes_avoided_embedding")
    return tuple(totals[name] for name in names)


QUESTION = "what may this picture be? is it "
"""Long enough that the block with the picture's last token ends before the questions differ."""


async def test_another_question_about_the_same_picture_needs_no_encoder(running):
    worker = running(embedding_cache_bytes=0)
    (item,) = pictures(1, 1)
    await collect(worker, ask(QUESTION + "red", item))
    assert avoided(worker) == (1, 1, 0, 0)
    second = await collect(worker, ask(QUESTION + "blue", item))
    assert avoided(worker) == (1, 1, 1, 0)
    other = running(prefix_cache_bytes=0)
    assert (await collect(other, ask(QUESTION + "blue", item))).tokens == second.tokens


async def test_without_a_prefix_the_stored_embedding_serves(running):
    worker = running(prefix_cache_bytes=0)
    (item,) = pictures(2, 1)
    first = await collect(worker, ask(QUESTION, item))
    second = await collect(worker, ask(QUESTION, item))
    assert first.tokens == second.tokens
    assert avoided(worker) == (1, 1, 0, 1)


async def test_nothing_is_found_that_another_scope_left_behind(running):
    worker = running()
    (item,) = pictures(21, 1)
    scoped = {salt: replace(ask(QUESTION, item), cache_salt=salt) for salt in ("", "ours", "theirs")}
    answers = [await collect(worker, request) for request in scoped.values()]
    assert avoided(worker) == (3, 3, 0, 0)
    assert {answer.end.usage.num_cached_tokens for answer in answers} == {0}
    assert len({tuple(answer.tokens[0]) for answer in answers}) == 1
    again = [await collect(worker, request) for request in scoped.values()]
    assert avoided(worker) == (3, 3, 3, 0)
    assert all(answer.end.usage.num_cached_tokens > 0 for answer in again)
    text = "only words, but many of them " * 4
    assert (await collect(worker, ask(text))).end.usage.num_cached_tokens == 0
    assert (await collect(worker, replace(ask(text), cache_salt="ours"))).end.usage.num_cached_tokens == 0
    assert (await collect(worker, replace(ask(text), cache_salt="ours"))).end.usage.num_cached_tokens > 0


async def test_an_embedding_is_made_once_per_scope_also_at_once(running):
    worker = running(prefix_cache_bytes=0)
    (item,) = pictures(22, 1)
    requests = [EncodeRequest(request_id="e", items=(item,), cache_salt=salt) for salt in ("ours", "theirs") * 3]
    responses = await asyncio.gather(*(worker.encode(request) for request in requests))
    assert avoided(worker)[1] == 2
    assert len({response.handles[0].key for response in responses}) == 2
    assert worker.stats().num_offered_tensors == 2


async def test_an_offer_is_renewed_by_its_handle_alone(directory):
    shared, items = SharedTensors(), pictures(23, 1)
    for cache_bytes in (2**20, 0):
        worker = start(directory, ("encode",), shared, embedding_cache_bytes=cache_bytes)
        (first,) = (await worker.encode(EncodeRequest(request_id="e", items=items))).handles
        again = EncodeRequest(request_id="r", items=(replace(items[0], source=first),))
        if cache_bytes:
            (renewed,) = (await worker.encode(again)).handles
            assert renewed.expires_at_s > first.expires_at_s
            assert replace(renewed, expires_at_s=first.expires_at_s) == first
        else:
            with pytest.raises(UnsupportedFeatureError):
                await worker.encode(again)
        assert avoided(worker)[1] == 1, "nothing is encoded for it"
        await idle(worker)
        await worker.aclose()


async def test_only_pictures_behind_the_covered_part_are_encoded(running):
    worker = running(embedding_cache_bytes=0)
    a, b, c = pictures(3, 3)
    await collect(worker, ask("first", a, b, places=(0, QUESTION, 1)))
    request = ask("second", a, c, places=(0, QUESTION, 1, 0), n=2)
    answer = await collect(worker, request)
    assert avoided(worker) == (4, 4, 0, 0), "the first picture stands behind the covered part once more"
    request = ask("third", a, c, places=(0, QUESTION, 1), n=2)
    answer = await collect(worker, request)
    assert avoided(worker)[2] >= 1
    other = running(prefix_cache_bytes=0)
    assert (await collect(other, request)).tokens == answer.tokens


async def test_a_covered_picture_is_not_taken_from_an_encoder_either(running):
    worker = running(embedding_cache_bytes=0)
    (item,) = pictures(4, 1)
    (handle,) = (await worker.encode(EncodeRequest(request_id="e", items=(item,)))).handles
    request = ask(QUESTION, replace(item, source=handle))
    first = await collect(worker, request)
    assert worker.stats().totals["taken_tensors"] == 1
    worker._mover._transport.drop(handle.key)
    second = await collect(worker, request)
    assert second.tokens == first.tokens
    assert worker.stats().totals["taken_tensors"] == 1


async def test_what_a_waiting_request_counts_on_is_not_evicted(running, monkeypatch):
    worker = running(embedding_cache_bytes=0, max_running=1, prefix_cache_bytes=6 * 16 * 768)
    assert worker._engine.core.pool.num_blocks == 6
    (item,) = pictures(5, 1)
    await collect(worker, ask(QUESTION + "red", item))
    slow_forward(worker, monkeypatch, 0.02)
    long = asyncio.create_task(collect(worker, ask("long", max_tokens=1500)))
    await until(lambda: worker.stats().num_running)
    waiting = asyncio.create_task(collect(worker, ask(QUESTION + "blue", item)))
    await until(lambda: worker.stats().num_waiting)
    assert worker.stats().num_pinned_blocks >= 2
    leaver = asyncio.create_task(collect(worker, ask(QUESTION + "green", item)))
    await until(lambda: worker.stats().num_waiting == 2)
    leaver.cancel()
    await asyncio.gather(leaver, return_exceptions=True)
    assert worker.stats().num_pinned_blocks >= 2, "pinned by two, given back by one"
    monkeypatch.undo()
    assert len((await long).tokens[0]) == 1500
    answer = await waiting
    assert avoided(worker)[:2] == (1, 1)
    assert worker.stats().num_pinned_blocks == 0
    other = running(prefix_cache_bytes=0)
    assert (await collect(other, ask(QUESTION + "blue", item))).tokens == answer.tokens
