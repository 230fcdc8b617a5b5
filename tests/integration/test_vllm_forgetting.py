"""Deleting from a vLLM server, where that is a script: what it is told, and what is said of servers that cannot."""

import asyncio
import json

import pytest

from chiasm.errors import ChiasmError, EngineError, UnsupportedFeatureError
from chiasm.protocol.deletion import Deleted, Deletion, Forgetful
from tests.integration.test_vllm_worker import COUNTS, END, WORD, connected, events
from tests.unit.routing.vllm.served import chat, picture

EVERYBODYS = Deletion(identity=picture().identity)
NOT_FOUND = json.dumps({"error": {"message": "Not Found", "type": "NotFoundError", "param": None, "code": 404}})


def results(*found):
    return 200, json.dumps({"results": list(found)})


def answers(script, **changed):
    known = {
        "/pause?mode=wait": (200, "{}"),
        "/resume": (200, "{}"),
        "/collective_rpc": results({"num_offers": 3}, None, "x"),
        "/v1/completions": (200, "{}"),
    }
    script.answers |= known | {f"/{name}": answer for name, answer in changed.items()}
    script.heads.clear()


def called(script):
    return [head.split(" ")[1] for head in script.heads]


async def test_a_server_forgets_between_two_requests_and_goes_on(tmp_path):
    async with connected(tmp_path, roles=("encode",), ec_connector="chiasm") as (script, worker):
        answers(script)
        assert isinstance(worker, Forgetful)
        assert await worker.forget(EVERYBODYS, 5) == (Deleted(worker="w", num_offers=3),)
        assert called(script) == ["/pause?mode=wait", "/collective_rpc", "/resume"]


async def test_a_consumer_forgets_with_its_next_step_or_says_that_it_has_not(tmp_path):
    async with connected(tmp_path, roles=("prefill", "decode"), ec_connector="chiasm") as (script, worker):
        answers(script)
        await worker.forget(EVERYBODYS, 5)
        assert called(script)[2:] == ["/resume", "/v1/completions", "/collective_rpc"]
        answers(script, collective_rpc=results({"is_pending": True}))
        with pytest.raises(EngineError, match="still in use"):
            await worker.forget(EVERYBODYS, 5)


async def test_a_server_without_embeddings_of_others_only_clears_its_own_caches(tmp_path):
    async with connected(tmp_path) as (script, worker):
        answers(script)
        assert await worker.forget(Deletion(cache_salt="s"), 5) == (Deleted(worker="w"),)
        assert called(script) == ["/pause?mode=wait", "/resume"]


async def test_keys_and_values_on_offer_end_by_themselves(tmp_path):
    async with connected(tmp_path) as (script, worker):
        answers(script)
        assert await worker.forget(Deletion(offer="k"), 5) == (Deleted(worker="w"),)
        assert not called(script)


@pytest.mark.parametrize("changed", [{"pause?mode=wait": (404, NOT_FOUND)}, {"pause?mode=wait": (404, "")}])
async def test_a_server_that_has_no_such_calls_says_what_to_do(tmp_path, changed):
    async with connected(tmp_path) as (script, worker):
        answers(script, **changed, resume=(404, NOT_FOUND))
        with pytest.raises(UnsupportedFeatureError, match="cannot be told to forget") as caught:
            await worker.forget(EVERYBODYS, 5)
        assert "VLLM_SERVER_DEV_MODE" in caught.value.hint


async def test_a_server_goes_on_when_it_cannot_forget(tmp_path):
    async with connected(tmp_path, roles=("encode",), ec_connector="chiasm") as (script, worker):
        answers(script, collective_rpc=(500, "{}"))
        with pytest.raises(ChiasmError):
            await worker.forget(EVERYBODYS, 5)
        assert called(script)[-1] == "/resume"


async def test_embeddings_of_another_connector_are_not_said_to_be_deleted(tmp_path):
    async with connected(tmp_path, ec_connector="example") as (script, worker):
        answers(script)
        with pytest.raises(UnsupportedFeatureError, match="example"):
            await worker.forget(EVERYBODYS, 5)
        assert not called(script)


@pytest.mark.parametrize(("deletion", "waits"), [(EVERYBODYS, True), (Deletion(cache_salt="another"), False)])
async def test_what_is_under_way_ends_first(tmp_path, deletion, waits):
    async with connected(tmp_path) as (script, worker):
        answers(script)
        script.answers["/v1/chat/completions"] = (200, events(WORD, END, COUNTS))
        answer = worker.generate(chat(0, items=(picture(),), stream=True))
        await anext(answer)
        forgetting = asyncio.create_task(worker.forget(deletion, 5))
        await asyncio.wait([forgetting], timeout=0.2)
        assert forgetting.done() != waits
        await answer.aclose()
        await forgetting
