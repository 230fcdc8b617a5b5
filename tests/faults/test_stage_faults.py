"""Faults between stages: each fails its own request with a code, neighbours finish, and everything is given back."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from chiasm.errors import (
    ChecksumMismatchError,
    ChiasmError,
    DeadlineExceededError,
    EngineStepError,
    HandleExpiredError,
    LayoutMismatchError,
    OverloadedError,
    TransferError,
)
from chiasm.protocol.worker import EncodeRequest
from chiasm.settings import TransferSettings
from tests.conditions import until
from tests.numeric.random_models import build
from tests.stages import Stages, ask, collect, idle, pictures, slow_forward, staged


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return build("qwen3_vl", tmp_path_factory.mktemp("models") / "qwen3_vl")


async def all_idle(stages: Stages) -> None:
    for worker in stages.workers:
        await idle(worker)
        assert worker.stats().is_healthy


async def failure(worker, request) -> ChiasmError:
    with pytest.raises(ChiasmError) as caught:
        await collect(worker, request)
    return caught.value


def changed(handle, **fields):
    return replace(handle, metadata=replace(handle.metadata, **fields))


WRONG_EMBEDDINGS = {
    "another picture": {"identity": "0" * 64},
    "another grid": {"grid_thw": (1, 2, 2)},
    "another model": {"model_revision": "other"},
    "another processor": {"processor_revision": "other"},
    "another type": {"dtype": "bfloat16"},
    "another contract": {"version": 99},
    "more rows": {"shape": (10**9, 10**6)},
}


@pytest.mark.parametrize("wrong", WRONG_EMBEDDINGS)
async def test_an_embedding_announced_wrongly_is_refused_by_its_item(directory, wrong):
    async with staged(directory, "e-pd") as stages:
        request = await stages.encoded(ask("look", *pictures(1, 2)))
        neighbour = asyncio.create_task(collect(stages.decode, ask("neighbour", max_tokens=100)))
        bad = replace(request.items[1], source=changed(request.items[1].source, **WRONG_EMBEDDINGS[wrong]))
        error = await failure(stages.decode, replace(request, items=(request.items[0], bad)))
        assert (type(error), error.item) == (LayoutMismatchError, 1)
        assert "item 1" in error.message
        assert len((await neighbour).tokens[0]) == 100
        await all_idle(stages)
        assert len((await collect(stages.decode, request)).tokens[0]) == 8


async def test_changed_bytes_are_refused_and_not_kept(directory):
    async with staged(directory, "e-pd") as stages:
        request = await stages.encoded(ask("look", *pictures(2, 1)))
        stages.shared.corrupt = True
        error = await failure(stages.decode, request)
        assert (type(error), error.item) == (ChecksumMismatchError, 0)
        await all_idle(stages)
        assert stages.decode.stats().num_cached_embeddings == 0
        stages.shared.corrupt = False
        assert len((await collect(stages.decode, request)).tokens[0]) == 8


async def test_an_embedding_that_is_gone_late_or_elsewhere_is_a_coded_error(directory):
    transfer = TransferSettings(timeout_s=1.0)
    async with staged(directory, "e-pd", transfer=transfer) as stages:
        request = await stages.encoded(ask("look", *pictures(3, 1)))
        handle = request.items[0].source
        elsewhere = replace(request.items[0], source=replace(handle, connector="pigeon"))
        error = await failure(stages.decode, replace(request, items=(elsewhere,)))
        assert (error.code, error.item) == ("transfer_failed", 0)
        stages.shared.get_delay_s = 30
        error = await failure(stages.decode, request)
        assert (error.code, error.item) == ("transfer_failed", 0)
        assert isinstance(await failure(stages.decode, replace(request, timeout_s=0.05)), DeadlineExceededError)
        stages.shared.get_delay_s = 0
        stages.encode._mover._transport.drop(handle.key)
        error = await failure(stages.decode, request)
        assert (error.code, error.item) == ("embedding_unavailable", 0)
        await all_idle(stages)


async def test_many_requests_with_one_handle_take_it_once(directory):
    async with staged(directory, "e-pd", prefix_cache_bytes=0) as stages:
        stages.shared.get_delay_s = 0.1
        request = await stages.encoded(ask("look", *pictures(4, 1)))
        answers = await asyncio.gather(*(collect(stages.decode, request) for _ in range(6)))
        assert len({tuple(answer.tokens[0]) for answer in answers}) == 1
        assert stages.shared.num_gets == 1
        assert stages.decode.stats().totals["taken_tensors"] == 1
        assert {span.item for span in answers[0].end.spans if span.stage == "transfer"} == {0}
        await all_idle(stages)


async def test_a_handle_that_leads_nowhere_does_not_harm_those_who_sent_the_picture(directory):
    transfer = TransferSettings(timeout_s=0.5)
    async with staged(directory, "e-epd", transfer=transfer) as stages:
        pixels = ask("look", *pictures(12, 1))
        (handle,) = (await stages.workers[0].encode(EncodeRequest(request_id="e", items=pixels.items))).handles
        stages.shared.get_delay_s = 30
        by_handle = replace(pixels, items=(replace(pixels.items[0], source=handle),))
        taking = asyncio.create_task(collect(stages.decode, by_handle))
        await until(lambda: stages.shared.num_gets)
        assert len((await collect(stages.decode, pixels)).tokens[0]) == 8
        with pytest.raises(TransferError):
            await taking
        await all_idle(stages)


async def test_an_encoder_tells_its_stages_and_refuses_when_its_quota_is_used_up(directory):
    async with staged(directory, "e-pd") as stages:
        items = pictures(5, 2)
        asked = EncodeRequest(request_id="e", items=(*items, items[0]))
        response = await stages.encode.encode(asked)
        assert response.handles[0] == response.handles[2]
        assert {handle.connector for handle in response.handles} == {"memory"}
        assert {"decode_media", "prepare", "encode_queue", "encode", "transfer"} == {s.stage for s in response.spans}
        assert stages.encode.stats().num_offered_tensors == 2
        stages.shared.is_full = True
        with pytest.raises(OverloadedError):
            await stages.encode.encode(asked)
        await all_idle(stages)


WRONG_KV = {
    "another prompt": {"prompt_hash": "0" * 64},
    "another model": {"model_revision": "other"},
    "another type": {"dtype": "bfloat16"},
    "another length": {"num_tokens": 3},
    "another shape": {"shape": (3, 2, 2, 3, 16)},
    "another contract": {"version": 99},
}


@pytest.mark.parametrize("wrong", WRONG_KV)
async def test_keys_and_values_announced_wrongly_are_refused(directory, wrong):
    async with staged(directory, "ep-d") as stages:
        request = ask("look", *pictures(6, 1))
        kv = await stages.prefilled(request)
        error = await failure(stages.decode, replace(request, kv=changed(kv, **WRONG_KV[wrong])))
        assert type(error) is LayoutMismatchError
        await all_idle(stages)
        assert len((await collect(stages.decode, replace(request, kv=kv))).tokens[0]) == 8


async def test_keys_and_values_of_the_same_words_about_another_picture_are_refused(directory):
    async with staged(directory, "ep-d") as stages:
        (one,) = pictures(7, 1)
        other = replace(one, identity="f" * 64)
        kv = await stages.prefilled(ask("look", one))
        error = await failure(stages.decode, replace(ask("look", other), kv=kv))
        assert type(error) is LayoutMismatchError
        await all_idle(stages)


async def test_keys_and_values_that_are_changed_gone_or_late_fail_only_their_request(directory):
    transfer = TransferSettings(timeout_s=1.0)
    async with staged(directory, "p-d", transfer=transfer) as stages:
        request = ask("look")
        kv = await stages.prefilled(request)
        neighbour = asyncio.create_task(stages.run(ask("neighbour", max_tokens=200)))
        await until(lambda: stages.decode.stats().num_running)
        stages.shared.corrupt = True
        assert type(await failure(stages.decode, replace(request, kv=kv))) is ChecksumMismatchError
        stages.shared.corrupt, stages.shared.get_delay_s = False, 30
        assert type(await failure(stages.decode, replace(request, kv=kv))) is TransferError
        stages.shared.get_delay_s = 0
        stages.prefill._mover._transport.drop(kv.key)
        assert type(await failure(stages.decode, replace(request, kv=kv))) is HandleExpiredError
        assert len((await neighbour).tokens[0]) == 200
        await all_idle(stages)


async def test_keys_and_values_that_wait_for_slots_are_bounded(directory, monkeypatch):
    async with staged(directory, "p-d", max_running=1) as stages:
        slow_forward(stages.decode, monkeypatch, 0.02)
        running = asyncio.create_task(stages.run(ask("long", max_tokens=1000)))
        await until(lambda: stages.decode.stats().num_running)
        requests = [ask(f"question {number}", max_tokens=4) for number in range(3)]
        handles = [await stages.prefilled(request) for request in requests]
        waiting = asyncio.create_task(collect(stages.decode, replace(requests[0], kv=handles[0])))
        await until(lambda: stages.decode.stats().num_waiting)
        exchange = stages.decode._generations._kv
        exchange._max_held_bytes = exchange.held_bytes
        assert type(await failure(stages.decode, replace(requests[1], kv=handles[1]))) is OverloadedError
        monkeypatch.undo()
        assert len((await waiting).tokens[0]) == 4
        assert len((await running).tokens[0]) == 1000
        assert len((await collect(stages.decode, replace(requests[2], kv=handles[2]))).tokens[0]) == 4
        await all_idle(stages)


async def cancelled(task: "asyncio.Task[object]") -> None:
    task.cancel()
    (result,) = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(result, asyncio.CancelledError)


@pytest.mark.parametrize("stage", ["take embedding", "prefill", "offer"])
async def test_a_caller_that_leaves_the_prefilling_worker_frees_everything(directory, monkeypatch, stage):
    async with staged(directory, "e-p-d", max_step_tokens=16) as stages:
        request = await stages.encoded(ask("many words " * 20, *pictures(8, 1)))
        offered = len(stages.shared.offers)
        if stage == "take embedding":
            stages.shared.get_delay_s = 1
        elif stage == "prefill":
            slow_forward(stages.prefill, monkeypatch, 0.1)
        else:
            stages.shared.put_delay_s = 0.5
        puts, gets = stages.shared.num_puts, stages.shared.num_gets
        task = asyncio.create_task(stages.prefilled(request))
        if stage == "take embedding":
            await until(lambda: stages.shared.num_gets > gets)
        elif stage == "prefill":
            await until(lambda: stages.prefill.stats().totals["prefill_tokens"])
        else:
            await until(lambda: stages.shared.num_puts > puts)
        await cancelled(task)
        await all_idle(stages)
        monkeypatch.undo()
        stages.shared.get_delay_s = stages.shared.put_delay_s = 0
        await until(lambda: len(stages.shared.offers) == offered)
        assert len((await stages.run(ask("next", *pictures(8, 1)))).tokens[0]) == 8


@pytest.mark.parametrize("stage", ["take", "wait", "decode"])
async def test_a_caller_that_leaves_the_decoding_worker_frees_everything(directory, monkeypatch, stage):
    async with staged(directory, "ep-d", max_running=1) as stages:
        request = ask("look", *pictures(9, 1), max_tokens=2000)
        request = replace(request, kv=await stages.prefilled(request))
        slow_forward(stages.decode, monkeypatch, 0.02)
        other = None
        if stage == "wait":
            other = asyncio.create_task(stages.run(ask("other", max_tokens=500)))
            await until(lambda: stages.decode.stats().num_running)
        if stage == "take":
            stages.shared.get_delay_s = 1
        gets = stages.shared.num_gets
        task = asyncio.create_task(collect(stages.decode, request))
        if stage == "take":
            await until(lambda: stages.shared.num_gets > gets)
        elif stage == "wait":
            await until(lambda: stages.decode.stats().num_waiting)
        else:
            await until(lambda: stages.decode.stats().totals["decode_tokens"])
        await cancelled(task)
        monkeypatch.undo()
        if other is not None:
            assert len((await other).tokens[0]) == 500
        stages.shared.get_delay_s = 0
        await all_idle(stages)
        again = replace(request, sampling=ask("x").sampling, kv=None)
        assert len((await stages.run(again)).tokens[0]) == 8


async def test_a_step_that_fails_on_either_side_hands_nothing_on(directory, monkeypatch):
    async with staged(directory, "p-d") as stages:

        def broken(*arguments):
            raise RuntimeError("the model broke")

        request = ask("look")
        kv = await stages.prefilled(request)
        offered = len(stages.shared.offers)
        monkeypatch.setattr(stages.prefill._engine.language.decoder, "forward", broken)
        with pytest.raises(EngineStepError):
            await stages.prefilled(ask("another"))
        assert len(stages.shared.offers) == offered
        monkeypatch.setattr(stages.decode._engine.language.decoder, "forward", broken)
        assert type(await failure(stages.decode, replace(request, kv=kv))) is EngineStepError
        monkeypatch.undo()
        await until(lambda: len(stages.shared.offers) < offered)
        assert type(await failure(stages.decode, replace(request, kv=kv))) is HandleExpiredError
        assert len((await stages.run(request)).tokens[0]) == 8
        await all_idle(stages)


async def test_closing_a_worker_stops_what_it_offers(directory):
    async with staged(directory, "e-p-d") as stages:
        await stages.prefilled(await stages.encoded(ask("look", *pictures(10, 1))))
        assert len(stages.shared.offers) == 2
    assert not stages.shared.offers
