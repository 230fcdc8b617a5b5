"""Deleting from a vLLM server, where that is a script: what it is told, and what is said of servers that cannot."""

import asyncio
import json

import pytest
from msgspec.structs import replace

from chiasm.errors import ChiasmError, DeadlineExceededError, EngineDeadError, EngineError, UnsupportedFeatureError
from chiasm.protocol.deletion import Deleted, Deletion, Forgetful
from chiasm.routing.vllm.worker import VllmOptions, VllmWorker
from tests.integration.test_vllm_worker import COUNTS, END, WORD, connected, events
from tests.unit.routing.vllm.served import chat, model, picture

OPTIONS = VllmOptions(name="other", roles=("encode", "prefill", "decode"))
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
        await asyncio.wait([forgetting], timeout=0.2 if waits else 5)
        assert forgetting.done() != waits
        await answer.aclose()
        await forgetting


async def reached(script, path):
    async with asyncio.timeout(5):
        while path not in called(script):  # noqa: ASYNC110 - a script tells nobody
            await asyncio.sleep(0.005)


async def test_deletions_have_a_server_rest_one_after_the_other_also_those_of_its_other_engines(tmp_path):
    """One that ended another's rest would have it wait for a server that never comes to rest."""
    turn = asyncio.Lock()
    async with connected(tmp_path, turn=turn) as (script, worker):
        other = await VllmWorker.connect(f"unix:{tmp_path / 'v.sock'}", model(), replace(OPTIONS, turn=turn))
        answers(script)
        script.gates["/pause?mode=wait"] = gate = asyncio.Event()
        both = asyncio.gather(worker.forget(EVERYBODYS, 5), other.forget(EVERYBODYS, 5))
        await reached(script, "/pause?mode=wait")
        await asyncio.sleep(0.05)
        assert called(script) == ["/pause?mode=wait"]
        gate.set()
        await both
        assert called(script) == ["/pause?mode=wait", "/resume"] * 2
        await other.aclose()


async def test_a_server_goes_on_however_resuming_fails_at_first(tmp_path):
    async with connected(tmp_path) as (script, worker):
        answers(script, resume=[(500, "{}"), (503, "not JSON"), (200, "{}")])
        assert await worker.forget(EVERYBODYS, 5) == (Deleted(worker="w"),)
        assert called(script) == ["/pause?mode=wait", "/resume", "/resume", "/resume"]


async def test_a_server_that_cannot_be_resumed_is_unhealthy_until_it_is(tmp_path):
    async with connected(tmp_path) as (script, worker):
        answers(script, resume=(500, "{}"))
        with pytest.raises(ChiasmError):
            await worker.forget(EVERYBODYS, 5)
        with pytest.raises(EngineDeadError):
            await worker.refresh()
        assert not worker.stats().is_healthy
        answers(script)
        assert (await worker.refresh()).is_healthy
        assert called(script) == ["/health", "/resume", "/metrics"]
        await worker.refresh()
        assert called(script).count("/resume") == 1


async def test_a_rest_that_nobody_ends_is_ended(tmp_path, monkeypatch):
    """That of a gateway which was killed; that of one which is still at it is left alone."""
    async with connected(tmp_path) as (script, worker):
        forgetting = worker._forgetting
        answers(script)
        script.answers["/is_paused"] = (200, '{"is_paused": true}')
        forgetting._can_rest = True  # this server has the call, after all
        await forgetting.look()
        await forgetting.look()
        assert "/resume" not in called(script)
        monkeypatch.setattr("chiasm.routing.vllm.forgetting._LONGEST_REST_S", 0.0)
        await forgetting.look()
        assert called(script)[-1] == "/resume"
        script.answers["/is_paused"] = (200, '{"is_paused": false}')
        await forgetting.look()
        assert called(script).count("/resume") == 1


async def test_a_rest_that_ends_by_itself_is_counted_anew(tmp_path):
    async with connected(tmp_path) as (script, worker):
        forgetting = worker._forgetting
        answers(script)
        forgetting._can_rest = True
        for rests in ("true", "false"):
            script.answers["/is_paused"] = (200, f'{{"is_paused": {rests}}}')
            await forgetting.look()
        assert forgetting._rests_since_s is None


async def test_an_engine_that_does_not_say_whether_it_rests_is_not_unwell(tmp_path, monkeypatch):
    """It answers between two steps, which may take long."""
    monkeypatch.setattr("chiasm.routing.vllm.forgetting._LOOK_TIMEOUT_S", 0.05)
    async with connected(tmp_path) as (script, worker):
        worker._forgetting._can_rest, worker._stats_due_s = True, 0.0
        script.answers["/is_paused"] = (200, '{"is_paused": false}')
        script.gates["/is_paused"] = gate = asyncio.Event()
        assert (await worker.refresh()).is_healthy
        gate.set()
        assert worker._forgetting._can_rest


async def test_servers_without_that_call_are_asked_once(tmp_path):
    async with connected(tmp_path) as (script, worker):
        assert called(script).count("/is_paused") == 1
        await worker._forgetting.look()
        assert called(script).count("/is_paused") == 1


async def test_who_gives_up_leaves_no_server_at_rest(tmp_path):
    """The call for rest must have come first: one that is overtaken by its end lasts for good."""
    async with connected(tmp_path) as (script, worker):
        answers(script)
        script.gates["/pause?mode=wait"] = gate = asyncio.Event()
        forgetting = asyncio.create_task(worker.forget(EVERYBODYS, 5))
        await reached(script, "/pause?mode=wait")
        forgetting.cancel()
        await asyncio.sleep(0.05)
        assert "/resume" not in called(script)
        gate.set()
        await reached(script, "/resume")


async def test_a_server_is_not_put_to_rest_when_there_is_no_time_left_for_it(tmp_path):
    async with connected(tmp_path) as (script, worker):
        answers(script)
        script.answers["/v1/chat/completions"] = (200, events(WORD, END, COUNTS))
        answer = worker.generate(chat(0, items=(picture(),), stream=True))
        await anext(answer)
        script.heads.clear()
        with pytest.raises(DeadlineExceededError, match="not ended in time"):
            await worker.forget(EVERYBODYS, 1.1)
        assert not called(script)
        await answer.aclose()


async def test_a_gateway_that_ends_during_a_deletion_has_the_server_go_on(tmp_path):
    async with connected(tmp_path) as (script, worker):
        answers(script)
        script.gates["/pause?mode=wait"] = gate = asyncio.Event()
        forgetting = asyncio.create_task(worker.forget(EVERYBODYS, 5))
        await reached(script, "/pause?mode=wait")
        await worker.aclose()
        assert called(script)[-1] == "/resume"
        gate.set()
        await asyncio.wait([forgetting])
