"""Prompts whose pictures come one by one are computed meanwhile; their tokens are those of prompts that came whole."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from chiasm.errors import DeadlineExceededError, HandleExpiredError, MediaError
from chiasm.protocol.media import LateSource
from chiasm.protocol.worker import EncodeRequest, SupplyRequest
from chiasm.workers.local import LocalWorker
from tests.conditions import until
from tests.numeric.random_models import build
from tests.stages import ask, collect, idle, pictures, staged, start

FAMILIES = ("qwen3_vl", "idefics3")
LONG = "one two three four five six seven eight nine ten " * 3
PLACES = {
    "text first": (LONG, 0),
    "between pictures": (0, LONG, 1),
    "repeats": (0, 0, LONG, 1, 0, "and", 1, 2, LONG, 2),
    "six": (0, LONG, 1, "then", 2, 3, LONG, 4, 5),
}


@pytest.fixture(scope="module", params=FAMILIES)
def directory(request, tmp_path_factory) -> Path:
    return build(request.param, tmp_path_factory.mktemp("models") / request.param)


@asynccontextmanager
async def serving(directory: Path, **engine):
    worker = start(directory, **engine)
    try:
        yield worker
    finally:
        await worker.aclose()


def question(places, **sampling):
    count = 1 + max(place for place in places if isinstance(place, int))
    return ask("what is it?", *pictures(31, count), places=places, **sampling)


def hold_back(worker: LocalWorker, monkeypatch, at_position: int) -> asyncio.Event:
    """Let the item at a position of each request wait for the event that is returned."""
    prepare, release = worker._decoder.prepare, asyncio.Event()

    async def held(item, preparer, clock, index):
        if index == at_position:
            await release.wait()
        return await prepare(item, preparer, clock, index)

    monkeypatch.setattr(worker._decoder, "prepare", held)
    return release


def tokens_ahead(worker: LocalWorker) -> float:
    return worker.stats().totals["prefill_tokens_ahead"]


@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("engine", [{}, {"max_step_tokens": 24}], ids=str)
async def test_tokens_do_not_depend_on_when_the_last_picture_comes(directory, monkeypatch, places, engine):
    request = question(places)
    async with serving(directory, **engine) as worker:
        expected = await collect(worker, request)
    async with serving(directory, **engine) as worker:
        release = hold_back(worker, monkeypatch, len(request.items) - 1)
        answering = asyncio.ensure_future(collect(worker, request))
        await until(lambda: tokens_ahead(worker) >= 64)
        release.set()
        answer = await answering
        assert answer.tokens == expected.tokens
        assert answer.end.usage.num_prompt_tokens == expected.end.usage.num_prompt_tokens
        await idle(worker)


async def test_the_receipt_shows_what_was_computed_while_a_picture_was_on_its_way(directory, monkeypatch):
    async with serving(directory) as worker:
        release = hold_back(worker, monkeypatch, 1)
        answering = asyncio.ensure_future(collect(worker, question(PLACES["between pictures"])))
        await until(lambda: tokens_ahead(worker) >= 64)
        release.set()
        spans = (await answering).end.spans
    encodes = [span for span in spans if span.stage == "encode"]
    prefills = [span for span in spans if span.stage == "prefill"]
    assert max(span.start_s for span in encodes) >= prefills[0].end_s
    assert prefills[-1].start_s >= max(span.end_s for span in encodes)
    assert sum(span.end_s - span.start_s for span in prefills) < prefills[-1].end_s - prefills[0].start_s


async def test_every_choice_gets_the_late_picture(directory, monkeypatch):
    request = question(PLACES["between pictures"], temperature=0.9, seed=5, n=3)
    async with serving(directory) as worker:
        expected = await collect(worker, request)
        assert len({tuple(tokens) for tokens in expected.tokens.values()}) > 1
    async with serving(directory) as worker:
        release = hold_back(worker, monkeypatch, 1)
        answering = asyncio.ensure_future(collect(worker, request))
        await until(lambda: tokens_ahead(worker) >= 64)
        release.set()
        assert (await answering).tokens == expected.tokens
        await idle(worker)


async def test_one_picture_at_the_start_is_waited_for(directory, monkeypatch):
    async with serving(directory) as worker:
        release = hold_back(worker, monkeypatch, 0)
        answering = asyncio.ensure_future(collect(worker, question((0, LONG))))
        await until(lambda: worker._embeddings.num_in_flight == 1)
        other = await collect(worker, ask(LONG))  # has gone through the whole engine meanwhile
        assert other.end.usage.num_prompt_tokens > 64
        release.set()
        await answering
        assert tokens_ahead(worker) == 0


async def test_a_late_picture_that_fails_ends_its_request_and_nothing_else(directory, monkeypatch):
    request, text = question(PLACES["between pictures"]), ask(LONG, max_tokens=40)
    async with serving(directory, max_running=2) as worker:
        expected = await collect(worker, text)
        release = hold_back(worker, monkeypatch, 1)
        broken = replace(request.items[1], identity="0" * 64, source=replace(request.items[1].source, data=b"no PNG"))
        failing = asyncio.ensure_future(collect(worker, replace(request, items=(request.items[0], broken))))
        await until(lambda: tokens_ahead(worker) >= 64)
        neighbour = asyncio.ensure_future(collect(worker, text))
        release.set()
        with pytest.raises(MediaError):
            await failing
        assert (await neighbour).tokens == expected.tokens
        await idle(worker)


async def test_a_picture_that_never_comes_ends_by_the_deadline_and_gives_everything_back(directory, monkeypatch):
    async with serving(directory, max_running=2) as worker:
        hold_back(worker, monkeypatch, 1)
        waiting = asyncio.ensure_future(collect(worker, replace(question(PLACES["between pictures"]), timeout_s=3)))
        await until(lambda: tokens_ahead(worker) >= 64)
        await collect(worker, ask(LONG))  # the other slot is free
        with pytest.raises(DeadlineExceededError):
            await waiting
        await idle(worker)


@pytest.mark.parametrize("topology", ["e-pd", "e-p-d"])
@pytest.mark.parametrize("engine", [{}, {"max_step_tokens": 24, "prefix_cache_bytes": 0}], ids=str)
async def test_handles_that_follow_their_prompt_give_the_same_tokens(directory, topology, engine):
    request = replace(question(PLACES["six"]), request_id="late")
    async with staged(directory, "agg") as whole:
        expected = await whole.run(request)
    async with staged(directory, topology, **engine) as stages:
        assert stages.prefill.info.takes_late_embeddings
        handles = {}
        for place, item in enumerate(request.items):
            response = await stages.encode.encode(EncodeRequest(request_id=f"e{place}", items=(item,)))
            handles[place] = response.handles[0]
        late = replace(request, items=tuple(replace(item, source=LateSource()) for item in request.items))
        early = asyncio.ensure_future(supply(stages.prefill, {0: handles[0]}))  # before the request is there
        if stages.decode is stages.prefill:
            answering = asyncio.ensure_future(collect(stages.prefill, late))
        else:
            answering = asyncio.ensure_future(stages.prefilled(late))
        await early
        await until(lambda: tokens_ahead(stages.prefill) >= 64)
        for place in (3, 1, 5, 2, 4):
            await supply(stages.prefill, {place: handles[place]})
        answer = await answering
        if stages.decode is not stages.prefill:
            answer = await collect(stages.decode, replace(request, kv=answer))
        assert answer.tokens == expected.tokens
        assert stages.prefill.stats().totals["decoded_items"] == 0
        for worker in stages.workers:
            await idle(worker)


async def test_embeddings_for_nobody_are_refused_in_time(directory):
    async with staged(directory, "e-pd") as stages:
        (handle,) = (await stages.encode.encode(EncodeRequest(request_id="e", items=pictures(1, 1)))).handles
        with pytest.raises(HandleExpiredError):
            await supply(stages.prefill, {0: handle}, timeout_s=0.05)


async def supply(worker, handles, timeout_s=60.0):
    await worker.supply(SupplyRequest(request_id="late", handles=handles, timeout_s=timeout_s))
