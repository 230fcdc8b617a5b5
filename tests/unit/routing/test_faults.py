"""Every fault in every topology: the request recovers or ends once with a code, in time; neighbours do not notice."""

import asyncio

import pytest

from chiasm.errors import (
    ChecksumMismatchError,
    ContextLengthError,
    DeadlineExceededError,
    EngineStepError,
    HandleExpiredError,
    LayoutMismatchError,
    MediaDecodeError,
    OverloadedError,
    ShuttingDownError,
    TransferError,
)
from chiasm.protocol.media import EmbeddingHandle
from tests.unit.routing.fleets import TOPOLOGIES, outcome_of, serving
from tests.unit.routing.scripted import ask, expected_answer, picture
from tests.unit.routing.virtual_time import run

ENCODE_FAULTS = {
    "dies": "die",
    "hangs": "hang",
    "fails a step": EngineStepError("step"),
    "is full": OverloadedError("full"),
    "shuts down": ShuttingDownError("bye"),
    "loses the embedding": "lose",
    "corrupts it": "corrupt",
    "misshapes it": "misshape",
}
GENERATE_FAULTS = {
    "dies": "die",
    "hangs": "hang",
    "fails a step": EngineStepError("step"),
    "is full": OverloadedError("full"),
    "shuts down": ShuttingDownError("bye"),
    "cannot transfer": TransferError("lost on the way"),
}
TIMEOUT_S = 12.0


async def with_neighbours(fleet, request, fault=None):
    """The request's outcome, while two others without faults of their own run beside it.

    They are answered in full, unless they are past their first token where a worker dies.
    """
    start_s = asyncio.get_running_loop().time()
    others = [
        ask("some text", request_id="n1", timeout_s=TIMEOUT_S),
        ask("other picture", picture("n"), request_id="n2", timeout_s=TIMEOUT_S),
    ]
    outcomes = await asyncio.gather(outcome_of(fleet, request), *(outcome_of(fleet, one) for one in others))
    for asked, outcome in zip(others, outcomes[1:], strict=True):
        is_ended_by_death = fault == "dies" and outcome.words and outcome.error is not None
        assert is_ended_by_death or outcome.words == expected_answer(asked)
    assert asyncio.get_running_loop().time() - start_s <= TIMEOUT_S + 0.5
    return outcomes[0]


@pytest.mark.parametrize("topology", ["e-pd", "e-p-d"])
@pytest.mark.parametrize("fault", ENCODE_FAULTS)
def test_a_faulty_encoder_is_replaced_by_another(topology, fault):
    async def main():
        async with serving(topology) as fleet:
            fleet["e0"].faults["encode"] = [ENCODE_FAULTS[fault]]
            fleet["e1"].faults["encode"] = [None]
            request = ask("which", picture("a"), timeout_s=TIMEOUT_S)
            outcome = await with_neighbours(fleet, request, fault)
            assert outcome.words == expected_answer(request)
            assert outcome.error is None
            assert sum(one[2] != "ok" for one in outcome.attempts) == 1
            assert fleet.router.stats().totals["failed_attempts"] >= 1

    run(main())


@pytest.mark.parametrize("topology", ["e-pd", "e-p-d"])
@pytest.mark.parametrize("fault", ENCODE_FAULTS)
def test_when_all_encoders_fail_prefill_encodes_from_pixels(topology, fault):
    async def main():
        async with serving(topology) as fleet:
            for name in ("e0", "e1"):
                fleet[name].faults["encode"] = [ENCODE_FAULTS[fault]] * 3
            request = ask("which", picture("a"), timeout_s=TIMEOUT_S)
            outcome = await outcome_of(fleet, request)
            assert outcome.error is None
            assert outcome.words == expected_answer(request)
            assert outcome.route.path == "local-encode"
            assert sum(code != "ok" for _, _, code in outcome.attempts) == 2
            assert fleet.router.stats().totals["encodes_local"] == 1

    run(main())


@pytest.mark.parametrize("topology", ["e-pd", "e-p-d"])
@pytest.mark.parametrize("fault", ENCODE_FAULTS)
def test_without_a_local_encoder_the_request_ends_with_a_code(topology, fault):
    async def main():
        async with serving(topology, local_encode="never") as fleet:
            for name in ("e0", "e1"):
                fleet[name].faults["encode"] = [ENCODE_FAULTS[fault]] * 3
            outcome = await outcome_of(fleet, ask("which", picture("a"), timeout_s=TIMEOUT_S))
            assert outcome.words == []
            assert outcome.error.code == {"is full": "overloaded"}.get(fault, "embedding_unavailable")
            text = ask("just text", request_id="after")
            assert (await outcome_of(fleet, text)).words == expected_answer(text)

    run(main())


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("stage", ["prefill", "decode"])
@pytest.mark.parametrize("fault", GENERATE_FAULTS)
@pytest.mark.parametrize("names", ["", "ab"])
def test_before_the_first_token_another_worker_takes_over(topology, stage, fault, names):
    async def main():
        async with serving(topology) as fleet:
            first = {"prefill": ("p0", "pd0", "w0"), "decode": ("d0", "pd0", "w0")}[stage]
            (name,) = [one for one in first if one in fleet.workers]
            fleet[name].faults[stage] = [GENERATE_FAULTS[fault]]
            request = ask("which", *(picture(one) for one in names), timeout_s=TIMEOUT_S)
            outcome = await with_neighbours(fleet, request, fault)
            assert outcome.error is None
            assert outcome.words == expected_answer(request)
            assert sum(one[2] != "ok" for one in outcome.attempts) <= 1
            assert fleet.router.stats().totals["failed_attempts"] >= 1

    run(main())


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_after_the_first_token_the_failure_ends_the_stream(topology):
    async def main():
        async with serving(topology) as fleet:
            name = "d0" if topology == "e-p-d" else next(n for n in fleet.workers if n in ("pd0", "w0"))
            fleet[name].faults["decode"] = ["drop"]
            request = ask("one two three", picture("a"), timeout_s=TIMEOUT_S)
            outcome = await outcome_of(fleet, request)
            assert outcome.words == ["one"]
            assert outcome.error.code == "engine_dead"
            assert outcome.attempts[-1][2] == "engine_dead"

    run(main())


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("error", [ContextLengthError("too long"), MediaDecodeError("broken", item=0)])
def test_the_caller_s_own_fault_is_not_tried_twice(topology, error):
    async def main():
        async with serving(topology) as fleet:
            for worker in fleet.workers.values():
                worker.faults["prefill"] = [error] * 2
            outcome = await outcome_of(fleet, ask("which", picture("a")))
            assert outcome.error is error
            assert len([one for one in outcome.attempts if one[0] != "encode"]) == 1

    run(main())


def test_an_encoder_s_word_on_a_picture_names_the_picture_s_place_in_the_request():
    async def main():
        async with serving("e-pd") as fleet:
            fleet["e1"].faults["encode"] = [MediaDecodeError("Media item 0: broken", item=0)]
            outcome = await outcome_of(fleet, ask("which", picture("a"), picture("b")))
            assert outcome.error.item == 1
            assert outcome.error.message == "Media item 1: broken"

    run(main())


def test_a_poisonous_request_kills_two_workers_at_most():
    async def main():
        async with serving("agg", {f"w{i}": ("encode", "prefill", "decode") for i in range(5)}) as fleet:
            for worker in fleet.workers.values():
                worker.faults["prefill"] = ["die"]
            outcome = await outcome_of(fleet, ask("which"))
            assert outcome.error.code == "engine_dead"
            assert sum(worker.is_dead for worker in fleet.workers.values()) == 2

    run(main())


def test_a_bad_embedding_is_never_used_again_by_anyone():
    async def main():
        async with serving("e-pd") as fleet:
            fleet["e0"].faults["encode"] = ["corrupt"]
            await outcome_of(fleet, ask("first", picture("a"), request_id="one"))
            bad = [key for key, (state, _) in fleet.tensors.embeddings.items() if state == "corrupt"]
            await outcome_of(fleet, ask("second", picture("a"), request_id="two"))
            used = [
                item.source.key
                for name in ("pd0", "pd1")
                for one in fleet[name].requests
                for item in one.items
                if isinstance(item.source, EmbeddingHandle)
            ]
            assert used.count(*bad) == 1

    run(main())


def test_retries_have_ids_of_their_own():
    async def main():
        async with serving("e-pd") as fleet:
            fleet["pd0"].faults["prefill"] = [EngineStepError("step")]
            fleet["e0"].faults["encode"] = [EngineStepError("step")]
            await outcome_of(fleet, ask("which", picture("a")))
            ids = [one for worker in fleet.workers.values() for one in worker.ids]
            assert len(ids) == len(set(ids)) == 4

    run(main())


def test_a_stumble_of_the_only_worker_is_forgiven_once():
    async def main():
        async with serving("agg", {"w0": ("encode", "prefill", "decode")}) as fleet:
            fleet["w0"].faults["prefill"] = [EngineStepError("step")]
            request = ask("which")
            assert (await outcome_of(fleet, request)).words == expected_answer(request)
            fleet["w0"].faults["prefill"] = [EngineStepError("step")] * 2
            assert (await outcome_of(fleet, ask("again", request_id="r2"))).error.code == "engine_step_failed"

    run(main())


@pytest.mark.parametrize("mixes", [True, False])
def test_pictures_go_as_they_are_beside_one_that_must_where_a_worker_takes_only_one_kind(mixes):
    async def main():
        async with serving("e-pd", {"e0": ("encode",)}) as fleet:
            worker = fleet.add("pd0", mixes_sources=mixes)
            known, new = picture("known"), picture("new")
            await outcome_of(fleet, ask("which", known, timeout_s=TIMEOUT_S))
            fleet["e0"].faults["encode"] = [EngineStepError("step")] * 3
            request = ask("which", known, new, request_id="r2", timeout_s=TIMEOUT_S)
            assert (await outcome_of(fleet, request)).words == expected_answer(request)
            as_handles = [isinstance(item.source, EmbeddingHandle) for item in worker.requests[-1].items]
            assert as_handles == ([True, False] if mixes else [False, False])

    run(main())


def test_an_embedding_that_was_gone_is_made_again_by_the_only_encoder():
    async def main():
        workers = {"e0": ("encode",), "pd0": ("prefill", "decode")}
        async with serving("e-pd", workers, local_encode="never") as fleet:
            fleet["e0"].faults["encode"] = ["lose"]
            request = ask("which", picture("a"), timeout_s=TIMEOUT_S)
            outcome = await outcome_of(fleet, request)
            assert outcome.words == expected_answer(request)
            assert [(stage, code) for stage, _, code in outcome.attempts] == [
                ("encode", "ok"), ("prefill", "embedding_unavailable"), ("encode", "ok"), ("prefill", "ok"),
            ]  # fmt: skip
            fleet["e0"].faults["encode"] = ["lose"] * 3
            again = await outcome_of(fleet, ask("which", picture("b"), request_id="r2", timeout_s=TIMEOUT_S))
            assert again.error.code == "embedding_unavailable"

    run(main())


def test_a_worker_that_is_full_is_not_asked_again():
    async def main():
        async with serving("agg", {"w0": ("encode", "prefill", "decode")}) as fleet:
            fleet["w0"].faults["prefill"] = [OverloadedError("full", retry_after_s=7)]
            outcome = await outcome_of(fleet, ask("which"))
            assert outcome.error.retry_after_s == 7
            assert len(fleet["w0"].ids) == 1

    run(main())


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("is_stream", [True, False])
def test_when_everything_hangs_the_deadline_ends_the_request(topology, is_stream):
    async def main():
        async with serving(topology) as fleet:
            for worker in fleet.workers.values():
                for stage in worker.faults:
                    worker.faults[stage] = ["hang"] * 5
            start_s = asyncio.get_running_loop().time()
            outcome = await outcome_of(fleet, ask("which", picture("a"), timeout_s=TIMEOUT_S, stream=is_stream))
            assert isinstance(outcome.error, DeadlineExceededError | HandleExpiredError)
            assert asyncio.get_running_loop().time() - start_s <= TIMEOUT_S + 0.5

    run(main())


def test_a_worker_that_goes_down_ends_the_waits_for_it_at_once():
    async def main():
        async with serving("agg") as fleet:
            fleet["w0"].faults["prefill"] = ["hang"]
            request = ask("which", timeout_s=1000.0)
            task = asyncio.create_task(outcome_of(fleet, request))
            await fleet["w0"].started.wait()
            start_s = asyncio.get_running_loop().time()
            fleet.router.fleet.failed(fleet.member("w0"), "somebody pulled the plug")
            outcome = await task
            assert outcome.words == expected_answer(request)
            assert outcome.attempts[0] == ("prefill", "w0", "engine_dead")
            assert asyncio.get_running_loop().time() - start_s < 1.0

    run(main())


@pytest.mark.parametrize("error", [HandleExpiredError, ChecksumMismatchError, LayoutMismatchError])
def test_a_transfer_that_fails_everywhere_ends_in_local_encoding(error):
    async def main():
        async with serving("e-pd", max_encode_attempts=1) as fleet:
            fault = {HandleExpiredError: "lose", ChecksumMismatchError: "corrupt", LayoutMismatchError: "misshape"}[
                error
            ]
            fleet["e0"].faults["encode"] = fleet["e1"].faults["encode"] = [fault]
            request = ask("which", picture("a"))
            outcome = await outcome_of(fleet, request)
            assert outcome.words == expected_answer(request)
            assert outcome.attempts[1][2] == error.code
            assert outcome.route.path == "local-encode"

    run(main())


def test_keys_and_values_that_no_worker_takes_are_withdrawn_from_the_one_that_offers_them():
    async def main():
        async with serving("e-p-d") as fleet:
            for name in ("d0", "d1"):
                fleet[name].is_dead = True
            outcome = await outcome_of(fleet, ask("which", picture("a"), timeout_s=TIMEOUT_S))
            assert outcome.error.code == "engine_dead"
            await asyncio.sleep(1.0)
            assert not fleet.tensors.kv
            assert sum(fleet[name].counts["withdrawn"] for name in ("p0", "p1")) == 2
            assert not len(fleet.router._parts.generate.withdrawals)

    run(main())
