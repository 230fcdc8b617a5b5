"""A caller that goes away: the stage that is under way stops, and nothing is left held."""

import asyncio

import pytest

from tests.unit.routing.fleets import outcome_of, serving
from tests.unit.routing.scripted import ask, expected_answer, picture
from tests.unit.routing.virtual_time import run


async def cancelled_at(fleet, worker, request):
    """Start a request and drop it once `worker` is at work."""
    task = asyncio.create_task(outcome_of(fleet, request))
    await fleet[worker].started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("topology", "worker"),
    [("agg", "w0"), ("e-pd", "e0"), ("e-pd", "pd0"), ("e-p-d", "e0"), ("e-p-d", "p0"), ("e-p-d", "d0")],
)
def test_cancelling_reaches_the_worker_that_is_at_work(topology, worker):
    async def main():
        async with serving(topology) as fleet:
            await cancelled_at(fleet, worker, ask("which", picture("a")))
            assert fleet[worker].counts["cancelled"] == 1
            assert fleet[worker].num_open == 0
            text = ask("short", request_id="after")
            assert (await outcome_of(fleet, text)).words == expected_answer(text)

    run(main())


def test_keys_and_values_of_a_caller_that_leaves_before_they_are_taken_are_withdrawn():
    async def main():
        async with serving("e-p-d") as fleet:
            for worker in fleet.workers.values():
                worker.hop_s = 0.5
            await cancelled_at(fleet, "d0", ask("which", picture("a")))
            assert fleet.tensors.kv
            await asyncio.sleep(1.0)
            assert not fleet.tensors.kv
            text = ask("short", request_id="after")
            assert (await outcome_of(fleet, text)).words == expected_answer(text)
            assert sum(worker.counts["withdrawn"] for worker in fleet.workers.values()) == 1

    run(main())


def test_closing_the_stream_in_the_middle_reaches_the_worker():
    async def main():
        async with serving("e-p-d") as fleet:
            events = fleet.router.generate(ask("one two three", picture("a")))
            async for event in events:
                if type(event).__name__ == "TokenEvent":
                    break
            await events.aclose()
            assert fleet["d0"].counts["cancelled"] == 1

    run(main())


def test_a_shared_encoding_goes_on_while_another_request_waits_for_it():
    async def main():
        async with serving("e-pd") as fleet:
            first = asyncio.create_task(outcome_of(fleet, ask("first", picture("a"), request_id="one")))
            await fleet["e0"].started.wait()
            second = asyncio.create_task(outcome_of(fleet, ask("second", picture("a"), request_id="two")))
            await asyncio.sleep(0.001)
            first.cancel()
            outcome = await second
            assert outcome.words[0] == "second"
            assert fleet["e0"].counts["cancelled"] == 0
            assert len(fleet["e0"].encoded) == 1

    run(main())


def test_a_joined_encoding_that_fails_is_not_held_against_who_joined_it():
    async def main():
        async with serving("e-pd", max_encode_attempts=1, local_encode="never") as fleet:
            fleet["e0"].faults["encode"] = ["hang"]
            first = asyncio.create_task(outcome_of(fleet, ask("first", picture("a"), request_id="one", timeout_s=2.0)))
            await fleet["e0"].started.wait()
            second = await outcome_of(fleet, ask("second", picture("a"), request_id="two"))
            assert second.words[0] == "second"
            assert (await first).error.code == "embedding_unavailable"

    run(main())


def test_closing_the_router_ends_what_is_under_way():
    async def main():
        async with serving("e-pd") as fleet:
            fleet["e0"].faults["encode"] = ["hang"]
            task = asyncio.create_task(outcome_of(fleet, ask("which", picture("a"), timeout_s=1000.0)))
            await fleet["e0"].started.wait()
            await fleet.router.aclose()
            outcome = await task
            assert outcome.error.code == "engine_dead"
            assert asyncio.get_running_loop().time() < 1001.0

    run(main())
