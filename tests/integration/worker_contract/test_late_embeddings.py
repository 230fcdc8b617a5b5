"""Handles that follow their prompt, by every carrier of the worker contract."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from chiasm.errors import ChiasmError, DeadlineExceededError, HandleExpiredError, InvalidRequestError
from chiasm.protocol.media import LateSource
from chiasm.protocol.wire import SUPPLY_PATH, WireRequest, decode_supply, encode_supply
from chiasm.protocol.worker import EncodeRequest, SupplyRequest
from tests.conditions import until
from tests.integration.worker_contract.servers import CARRIERS, remote
from tests.numeric.random_models import build
from tests.stages import ask, collect, idle, pictures, staged


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return build("qwen3_vl", tmp_path_factory.mktemp("models") / "qwen3_vl")


def request():
    return replace(ask("which?", *pictures(41, 2), places=("one two three four " * 8, 0, 1)), request_id="late")


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_a_prompt_is_computed_with_handles_that_come_after_it(directory, tmp_path, carrier):
    async with staged(directory, "e-pd") as stages, AsyncExitStack() as stack:
        _, worker = await stack.enter_async_context(remote(stages.prefill, carrier, tmp_path))
        assert worker.info.takes_late_embeddings
        encoded = await stages.encode.encode(EncodeRequest(request_id="e", items=request().items))
        first, second = encoded.handles
        items = zip(request().items, encoded.handles, strict=True)
        known = replace(request(), items=tuple(replace(item, source=handle) for item, handle in items))
        expected = await collect(worker, known)
        late = replace(request(), items=tuple(replace(item, source=LateSource()) for item in request().items))
        early = asyncio.ensure_future(worker.supply(SupplyRequest(request_id="late", handles={1: second})))
        answering = asyncio.ensure_future(collect(worker, late))
        await early
        await worker.supply(SupplyRequest(request_id="late", handles={0: first}))
        assert (await answering).tokens == expected.tokens
        await idle(stages.prefill)


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_a_worker_that_waits_can_be_left_and_a_request_that_ended_takes_nothing(directory, tmp_path, carrier):
    async with staged(directory, "e-pd") as stages, AsyncExitStack() as stack:
        _, worker = await stack.enter_async_context(remote(stages.prefill, carrier, tmp_path))
        late = replace(request(), items=tuple(replace(item, source=LateSource()) for item in request().items))
        waiting = asyncio.ensure_future(collect(worker, late))
        await until(lambda: stages.prefill.stats().totals["prefill_tokens_ahead"] > 0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await idle(stages.prefill)
        with pytest.raises((HandleExpiredError, DeadlineExceededError)):
            await worker.supply(SupplyRequest(request_id="late", handles={}, timeout_s=0.3))


async def test_a_worker_without_a_language_model_has_no_such_call(directory, tmp_path):
    async with staged(directory, "e-pd") as stages, AsyncExitStack() as stack:
        _, worker = await stack.enter_async_context(remote(stages.encode, CARRIERS[0], tmp_path))
        assert not worker.info.takes_late_embeddings
        with pytest.raises(ChiasmError):
            await worker.supply(SupplyRequest(request_id="late", handles={}))


def test_the_call_comes_back_as_it_was_and_nonsense_is_refused():
    asked = SupplyRequest(request_id="r", handles={}, timeout_s=2.0)
    assert encode_supply(asked).path == SUPPLY_PATH
    assert decode_supply(encode_supply(asked).body) == asked
    deep = b'{"request_id":"r","handles":' + b"[" * 100_000
    for body in (b"", b"[]", b'{"request_id":1}', b'{"request_id":"r","handles":{"x":1}}', deep, b"\xff"):
        with pytest.raises(InvalidRequestError):
            decode_supply(body)
    assert isinstance(encode_supply(asked), WireRequest)
