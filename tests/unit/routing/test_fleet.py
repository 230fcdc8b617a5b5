"""Who belongs to the fleet, who is well, and what the router says of itself."""

import asyncio

import msgspec
import pytest

from chiasm.errors import EngineDeadError, EngineStartError, OverloadedError, ShuttingDownError
from chiasm.protocol.deletion import Deletion
from chiasm.protocol.generation import TokenEvent
from chiasm.routing.router import Router
from chiasm.settings import RoutingSettings
from tests.unit.routing.fleets import Fleet, outcome_of, serving
from tests.unit.routing.scripted import ALL, ScriptedWorker, ask, expected_answer, picture
from tests.unit.routing.virtual_time import LoopClock, run


@pytest.mark.parametrize(
    ("field", "value"),
    [("model", "other"), ("model_revision", "m2"), ("processor_revision", "p2"), ("family", "x"), ("version", 99)],
)
def test_a_stranger_is_refused(field, value):
    async def main():
        async with serving("agg") as fleet:
            stranger = ScriptedWorker("w2", fleet.tensors, **{field: value})
            with pytest.raises(EngineStartError, match="w2"):
                fleet.router.fleet.add("w2", stranger)
            assert len(fleet.router.fleet.members) == 2

    run(main())


def test_a_name_is_given_once():
    async def main():
        async with serving("agg") as fleet:
            with pytest.raises(EngineStartError, match="w0"):
                fleet.router.fleet.add("w0", ScriptedWorker("w0", fleet.tensors))

    run(main())


def test_a_drained_member_gets_nothing_new_and_finishes_what_it_has():
    async def main():
        async with serving("agg") as fleet:
            request = ask("one two")
            task = asyncio.create_task(outcome_of(fleet, request))
            await fleet["w0"].started.wait()
            fleet.router.fleet.drain("w0")
            later = [await outcome_of(fleet, ask("x", request_id=f"r{i}")) for i in range(3)]
            assert {one.attempts[0][1] for one in later} == {"w1"}
            assert (await task).words == expected_answer(request)

    run(main())


def test_removing_a_member_ends_its_requests_elsewhere_and_forgets_its_caches():
    async def main():
        async with serving("e-pd") as fleet:
            await outcome_of(fleet, ask("first", picture("a"), request_id="one"))
            producer = fleet.router.fleet.embeddings.producer(picture("a").identity)
            fleet.router.fleet.remove(producer)
            await fleet.workers.pop(producer).aclose()
            assert fleet.router.fleet.embeddings.handle(picture("a").identity) is None
            outcome = await outcome_of(fleet, ask("second", picture("a"), request_id="two"))
            assert {one[2] for one in outcome.attempts} == {"ok"}

    run(main())


def test_a_deletion_reaches_every_member_and_what_the_router_knows():
    async def main():
        async with serving("e-p-d") as fleet:
            await outcome_of(fleet, ask("first", picture("a"), request_id="one"))
            deletion = Deletion(identity=picture("a").identity)
            router, *members = await fleet.router.forget(deletion, 5.0)
            assert (router.worker, router.num_known) == ("router", 3)  # the embedding, the picture, the question
            assert [one.worker for one in members] == list(fleet.workers)
            assert sum(one.num_embeddings for one in members) == 2
            assert all(worker.deletions == [deletion] for worker in fleet.workers.values())
            await outcome_of(fleet, ask("first", picture("a"), request_id="two"))
            assert sum(len(worker.encoded) for worker in fleet.workers.values()) == 2

    run(main())


def test_a_deletion_names_members_that_did_not_answer_and_reaches_the_others():
    async def main():
        async with serving("e-pd") as fleet:
            fleet["e0"].faults["forget"] = EngineDeadError("gone")
            fleet["pd0"].faults["forget"] = "hang"
            fleet.member("pd1").mark_down("it is still asked")
            asked = await fleet.router.forget(Deletion(cache_salt="ours"), 5.0)
            assert {one.worker: one.error for one in asked} == {
                "router": None,
                "e0": "engine_dead",
                "e1": None,
                "pd0": "deadline_exceeded",
                "pd1": None,
            }
            assert len(fleet["e1"].deletions) == 1

    run(main())


def test_a_member_that_cannot_forget_is_named():
    async def main():
        fleet = Fleet("agg", {})

        class Forgetless:
            info = ScriptedWorker("w", fleet.tensors).info

        fleet.router.fleet.add("w", Forgetless())
        asked = await fleet.router.forget(Deletion(cache_salt=""), 5.0)
        assert [(one.worker, one.error) for one in asked] == [("router", None), ("w", "unsupported_feature")]

    run(main())


def test_without_a_worker_for_a_stage_the_request_says_so():
    async def main():
        async with serving("e-p-d") as fleet:
            for name in ("d0", "d1"):
                fleet.router.fleet.failed(fleet.member(name), "gone")
            outcome = await outcome_of(fleet, ask("which"))
            assert outcome.error.code == "engine_dead"
            assert "decode" in outcome.error.message
            assert not fleet.router.stats().is_healthy

    run(main())


def test_the_router_is_one_worker_of_all_roles():
    async def main():
        async with serving("e-p-d") as fleet:
            fleet.add("p9", ("prefill",), max_model_tokens=1000, started_at_unix_s=5.0)
            info = fleet.router.info
            assert info.roles == ALL
            assert (info.max_model_tokens, info.started_at_unix_s, info.model) == (1000, 5.0, "fake")

    run(main())


def test_a_router_without_members_has_nothing_to_say():
    with pytest.raises(EngineDeadError):
        _ = Router(RoutingSettings(), clock=LoopClock()).info


def test_stats_are_sums():
    async def main():
        async with serving("agg") as fleet:
            await outcome_of(fleet, ask("which", picture("a")))
            stats = fleet.router.stats()
            assert (stats.num_free_slots, stats.num_cached_blocks, stats.num_cached_embeddings) == (32, 6, 1)
            assert stats.totals["encoded_items"] == 1
            assert stats.totals["routes_agg"] == 1

    run(main())


def test_what_becomes_of_pictures_is_counted_once_though_workers_count_too():
    async def main():
        async with serving("agg") as fleet:
            await outcome_of(fleet, ask("which", picture("a")))
            before = fleet.router.stats().totals
            worker = fleet.router.fleet.members[0].worker
            stats = worker.stats()
            totals = stats.totals | {"encodes_avoided_prefix": 7, "steps": 3}
            worker.stats = lambda: msgspec.structs.replace(stats, totals=totals)
            after = fleet.router.stats().totals
            assert after["encodes_avoided_prefix"] == before["encodes_avoided_prefix"]
            assert after["steps"] == 3

    run(main())


def test_the_fleet_shows_each_member():
    async def main():
        async with serving("e-pd") as fleet:
            fleet.router.fleet.failed(fleet.router.fleet.members[0], "it was lost")
            shown = fleet.router.fleet_state()
            assert shown.topology == "e-pd"
            assert [one.name for one in shown.members] == [one.name for one in fleet.router.fleet.members]
            assert (shown.members[0].state, shown.members[0].reason) == ("down", "it was lost")
            assert {one.state for one in shown.members[1:]} == {"ready"}

    run(main())


def started(fleet):
    fleet.router.start()
    return asyncio.sleep(1.1)


def test_members_get_work_once_a_probe_has_shown_that_they_answer():
    async def main():
        fleet = Fleet("e-pd", {})
        for name, roles in (("e0", ("encode",)), ("pd0", ALL)):
            worker = fleet.workers[name] = ScriptedWorker(name, fleet.tensors, roles)
            fleet.router.fleet.add(name, worker)
        assert (await outcome_of(fleet, ask("early"))).error.code == "engine_dead"
        await started(fleet)
        assert [one.state for one in fleet.router.fleet.members] == ["ready", "ready"]
        assert len(fleet["e0"].encoded) == 1
        assert fleet["pd0"].requests[0].sampling.max_tokens == 1
        await fleet.router.aclose()

    run(main())


def test_an_idle_member_is_probed_and_one_that_fails_goes_down_and_comes_back():
    async def main():
        async with serving("agg", probe_interval_s=5.0) as fleet:
            fleet["w0"].faults["prefill"] = [None, OverloadedError("wedged"), "hang"]
            fleet.router.start()
            await asyncio.sleep(6.0)
            assert fleet.member("w0").state == "ready"
            await asyncio.sleep(5.5)
            member = fleet.member("w0")
            assert (member.state, "wedged" in member.reason) == ("down", True)
            assert fleet.member("w1").state == "ready"
            await asyncio.sleep(20.0)
            assert (member.state, member.reason) == ("ready", "")
            await fleet.router.health.aclose()

    run(main())


def test_a_busy_member_is_not_probed():
    async def main():
        async with serving("agg", {"w0": ALL}, probe_interval_s=2.0) as fleet:
            fleet["w0"].prefill_s = 30.0
            fleet.router.start()
            await outcome_of(fleet, ask("long", timeout_s=100.0))
            assert len(fleet["w0"].requests) == 1
            await fleet.router.health.aclose()

    run(main())


def test_a_member_that_says_it_is_not_well_goes_down_and_its_requests_go_elsewhere():
    async def main():
        async with serving("agg") as fleet:
            fleet.router.start()
            fleet["w0"].faults["prefill"] = ["hang"]
            request = ask("which", timeout_s=1000.0)
            task = asyncio.create_task(outcome_of(fleet, request))
            await fleet["w0"].started.wait()
            fleet["w0"].is_dead = True
            outcome = await task
            assert outcome.words == expected_answer(request)
            assert asyncio.get_running_loop().time() < 1002.0
            await fleet.router.health.aclose()

    run(main())


def test_one_that_shuts_down_gets_nothing_more_and_is_taken_back_when_it_answers_again():
    async def main():
        async with serving("agg") as fleet:
            fleet["w0"].faults["prefill"] = [None, ShuttingDownError("bye"), ShuttingDownError("bye")]
            slow = ask("one two", request_id="slow")
            task = asyncio.create_task(outcome_of(fleet, slow))
            await fleet["w0"].started.wait()
            fleet.router.fleet.blame("w0", ShuttingDownError("bye"))
            assert (await outcome_of(fleet, ask("x"))).attempts == [("prefill", "w1", "ok")]
            assert (await task).words == expected_answer(slow)
            assert fleet.member("w0").state == "down"
            fleet.router.start()
            await asyncio.sleep(5.0)
            assert fleet.member("w0").state == "ready"
            await fleet.router.health.aclose()

    run(main())


def test_one_that_leaves_between_plan_and_call_is_a_failure_like_others():
    async def main():
        async with serving("e-pd") as fleet:
            request = ask("which", picture("a"))
            events = fleet.router.generate(request)
            route = (await anext(events)).route
            assert route.path == "e-pd"
            for name in ("e0", "pd0"):
                fleet.router.fleet.remove(name)
                await fleet.workers.pop(name).aclose()
            words = [event.text.strip() async for event in events if isinstance(event, TokenEvent)]
            assert words == expected_answer(request)

    run(main())


def test_what_the_router_is_outlasts_its_last_member():
    async def main():
        async with serving("agg", {"w0": ALL}) as fleet:
            info = fleet.router.info
            assert fleet.router.info is info
            fleet.router.fleet.remove("w0")
            await fleet.workers.pop("w0").aclose()
            assert fleet.router.info is info
            assert not fleet.router.stats().is_healthy
            fleet.add("w9", max_model_tokens=7)
            assert fleet.router.info.max_model_tokens == 7

    run(main())


class Remote(ScriptedWorker):
    """Its stats come by a call, which may fail."""

    failures = 0

    async def refresh(self):
        if self.failures:
            self.failures -= 1
            raise EngineDeadError("no connection")


def test_one_look_without_an_answer_is_forgiven_three_are_not():
    async def main():
        async with serving("agg", {"w1": ALL}, health_interval_s=1.0) as fleet:
            remote = fleet.workers["w0"] = Remote("w0", fleet.tensors)
            fleet.router.fleet.add("w0", remote).mark_ready()
            fleet.router.start()
            remote.failures = 2
            await asyncio.sleep(2.5)
            assert fleet.member("w0").state == "ready"
            remote.failures = 3
            await asyncio.sleep(3.0)
            assert fleet.member("w0").state == "down"
            await asyncio.sleep(3.0)
            assert fleet.member("w0").state == "ready"
            await fleet.router.health.aclose()

    run(main())


def test_one_that_comes_back_as_somebody_else_stays_out():
    async def main():
        async with serving("agg") as fleet:
            fleet.router.fleet.failed(fleet.member("w0"), "restarted")
            fleet["w0"].info = ScriptedWorker("w0", fleet.tensors, model_revision="m2").info
            fleet.router.start()
            await asyncio.sleep(3.0)
            assert fleet.member("w0").state == "down"
            assert "m2" in fleet.member("w0").reason
            await fleet.router.health.aclose()

    run(main())
