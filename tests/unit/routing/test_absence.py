"""Nobody can take a request now: it waits for a worker that comes back, within bounds; others do not notice."""

import asyncio

import pytest

from chiasm.errors import EngineDeadError, EngineStepError
from tests.unit.routing.fleets import outcome_of, serving
from tests.unit.routing.scripted import ask, expected_answer, picture
from tests.unit.routing.virtual_time import run


def now_s():
    return asyncio.get_running_loop().time()


async def comes_back(fleet, name, after_s):
    """The worker of a name is started again, and proven."""
    await asyncio.sleep(after_s)
    fleet[name].is_dead = False
    fleet.member(name).mark_ready()


def down(fleet, *names):
    for name in names:
        fleet[name].is_dead = True
        fleet.router.fleet.failed(fleet.member(name), "killed")


@pytest.mark.parametrize("request_", [ask(timeout_s=60.0), ask("which", picture("a"), timeout_s=60.0)])
def test_a_request_waits_for_the_only_worker(request_):
    async def main():
        async with serving("agg", {"w0": ("encode", "prefill", "decode")}) as fleet:
            down(fleet, "w0")
            outcome, _ = await asyncio.gather(outcome_of(fleet, request_), comes_back(fleet, "w0", 5.0))
            assert outcome.words == expected_answer(request_)
            assert fleet.router.stats().totals["waits_for_worker"] == 1
            waited_s = sum(s.end_s - s.start_s for s in outcome.finished.spans if s.stage == "prefill_queue")
            assert waited_s >= 5.0

    run(main())


def test_a_request_that_the_only_worker_died_of_is_tried_again_when_it_is_back():
    async def main():
        async with serving("agg", {"w0": ("encode", "prefill", "decode")}) as fleet:
            fleet["w0"].faults["prefill"] = ["die"]
            request = ask(timeout_s=60.0)
            outcome, _ = await asyncio.gather(outcome_of(fleet, request), comes_back(fleet, "w0", 5.0))
            assert outcome.words == expected_answer(request)
            assert [code for _, _, code in outcome.attempts] == ["engine_dead", "ok"]

    run(main())


def test_it_waits_also_for_a_worker_that_joins_under_another_name():
    async def main():
        async with serving("agg", {"w0": ("encode", "prefill", "decode")}) as fleet:
            assert fleet.router.info.model == "fake"
            await fleet.router.fleet.remove("w0").aclose()

            async def joins():
                await asyncio.sleep(3.0)
                fleet.add("w9")

            outcome, _ = await asyncio.gather(outcome_of(fleet, ask(timeout_s=60.0)), joins())
            assert outcome.error is None

    run(main())


def test_pictures_wait_for_an_encoder_where_nobody_else_may_encode_and_texts_do_not():
    async def main():
        async with serving("e-pd", local_encode="never") as fleet:
            down(fleet, "e0", "e1")
            start_s = now_s()
            with_picture = asyncio.create_task(outcome_of(fleet, ask("which", picture("a"), timeout_s=60.0)))
            text = ask("just text", request_id="t", timeout_s=60.0)
            assert (await outcome_of(fleet, text)).words == expected_answer(text)
            assert now_s() - start_s < 1.0
            assert not with_picture.done()
            await comes_back(fleet, "e1", 5.0)
            assert (await with_picture).error is None

    run(main())


def test_the_wait_ends_with_a_code_after_its_time():
    async def main():
        async with serving("agg", {"w0": ("encode", "prefill", "decode")}, wait_for_worker_s=4.0) as fleet:
            down(fleet, "w0")
            start_s = now_s()
            outcome = await outcome_of(fleet, ask(timeout_s=60.0))
            assert isinstance(outcome.error, EngineDeadError)
            assert now_s() - start_s == pytest.approx(4.0)
            assert fleet.router.fleet.absence.num_waiting == 0

    run(main())


def test_and_never_lasts_longer_than_the_request():
    async def main():
        async with serving("agg", {"w0": ("encode", "prefill", "decode")}) as fleet:
            down(fleet, "w0")
            start_s = now_s()
            assert (await outcome_of(fleet, ask(timeout_s=2.0))).error is not None
            assert now_s() - start_s == pytest.approx(2.0)

    run(main())


@pytest.mark.parametrize("settings", [{"wait_for_worker_s": 0.0}, {"max_requests_waiting_for_worker": 0}])
def test_nobody_waits_where_that_is_switched_off(settings):
    async def main():
        async with serving("agg", {"w0": ("encode", "prefill", "decode")}, **settings) as fleet:
            down(fleet, "w0")
            start_s = now_s()
            assert isinstance((await outcome_of(fleet, ask(timeout_s=60.0))).error, EngineDeadError)
            assert now_s() == start_s

    run(main())


def test_only_so_many_wait_at_once():
    async def main():
        workers = {"w0": ("encode", "prefill", "decode")}
        async with serving("agg", workers, max_requests_waiting_for_worker=2) as fleet:
            down(fleet, "w0")
            asked = [asyncio.create_task(outcome_of(fleet, ask(request_id=f"r{n}", timeout_s=60.0))) for n in range(5)]
            outcomes, _ = await asyncio.gather(asyncio.gather(*asked), comes_back(fleet, "w0", 5.0))
            assert [one.error is None for one in outcomes] == [True, True, False, False, False]

    run(main())


def test_what_failed_otherwise_does_not_wait():
    async def main():
        async with serving("agg", {"w0": ("encode", "prefill", "decode")}) as fleet:
            fleet["w0"].faults["prefill"] = [EngineStepError("step")] * 3
            start_s = now_s()
            assert isinstance((await outcome_of(fleet, ask(timeout_s=60.0))).error, EngineStepError)
            assert now_s() - start_s < 1.0

    run(main())


def test_a_caller_that_leaves_while_waiting_leaves_nothing_behind():
    async def main():
        async with serving("agg", {"w0": ("encode", "prefill", "decode")}) as fleet:
            down(fleet, "w0")
            asked = asyncio.create_task(outcome_of(fleet, ask(timeout_s=60.0)))
            await asyncio.sleep(1.0)
            assert fleet.router.fleet.absence.num_waiting == 1
            asked.cancel()
            await asyncio.wait([asked])
            assert fleet.router.fleet.absence.num_waiting == 0

    run(main())
