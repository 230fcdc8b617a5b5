"""Servers that rest while they forget do so one after another, and requests go on where others play their roles."""

import asyncio

from chiasm.errors import EngineDeadError
from chiasm.protocol.deletion import Deleted, Deletion
from tests.unit.routing.fleets import Fleet, outcome_of
from tests.unit.routing.scripted import ALL, ScriptedWorker, ask, picture
from tests.unit.routing.virtual_time import run

DELETION = Deletion(cache_salt="ours")
REST_S = 2.0
SPLIT = {"pd0": ("prefill", "decode"), "e0": ("encode",), "pd1": ("prefill", "decode")}


class RestingWorker(ScriptedWorker):
    """Answers nobody while it forgets."""

    rests_to_forget = True
    awake = None
    log = None

    async def forget(self, deletion, timeout_s):
        self.log.append(self.info.name)
        self.awake.clear()
        await asyncio.sleep(REST_S)
        self.awake.set()
        self.log.append(f"{self.info.name} is back")
        fault = self.faults.get("forget")
        if fault is not None:
            raise fault
        return (Deleted(worker="itself"),)

    async def generate(self, request):
        await self.awake.wait()
        async for event in super().generate(request):
            yield event


def resting(workers, topology="agg", servers=()):
    """A fleet of such workers, and what they did in which order."""
    fleet, log = Fleet(topology, {}, wait_for_worker_s=0.0), []
    for name, roles in workers.items():
        worker = RestingWorker(name, fleet.tensors, roles, server="shared" if name in servers else "")
        worker.log, worker.awake = log, asyncio.Event()
        worker.awake.set()
        fleet.workers[name] = worker
        fleet.router.fleet.add(name, worker).mark_ready()
    return fleet, log


def test_one_server_after_another_and_encoders_first():
    async def main():
        fleet, log = resting(SPLIT, "e-pd")
        _, *members = await fleet.router.forget(DELETION, 5.0)
        assert log == ["e0", "e0 is back", "pd0", "pd0 is back", "pd1", "pd1 is back"]
        assert [one.worker for one in members] == ["e0", "pd0", "pd1"]
        assert not any(one.num_rests for one in fleet.router.fleet.members)
        await fleet.router.aclose()

    run(main())


def test_engines_of_one_server_rest_together():
    async def main():
        fleet, log = resting({"a": ALL, "a.1": ALL, "b": ALL}, servers=("a", "a.1"))
        await fleet.router.forget(DELETION, 5.0)
        assert log == ["a", "a.1", "a is back", "a.1 is back", "b", "b is back"]
        await fleet.router.aclose()

    run(main())


def test_requests_go_to_who_is_awake():
    async def main():
        fleet, _ = resting({"a": ALL, "b": ALL})
        loop = asyncio.get_running_loop()
        deletion = asyncio.create_task(fleet.router.forget(DELETION, 5.0))
        served = []
        while not deletion.done():
            start_s = loop.time()
            outcome = await outcome_of(fleet, ask("hello", request_id=str(len(served))))
            served.append(outcome.attempts[0][1])
            assert outcome.error is None
            assert loop.time() - start_s < REST_S / 2
        assert {"a", "b"} == set(served)
        await fleet.router.aclose()

    run(main())


def test_where_nobody_else_plays_a_role_requests_wait_for_the_end_of_the_rest():
    async def main():
        fleet, _ = resting({"alone": ALL})
        deletion = asyncio.create_task(fleet.router.forget(DELETION, 5.0))
        await asyncio.sleep(0.1)
        outcome = await outcome_of(fleet, ask("hello", picture("a"), request_id="one"))
        assert (outcome.error, deletion.done()) == (None, True)
        await fleet.router.aclose()

    run(main())


def test_one_that_fails_is_named_and_the_next_is_told_all_the_same():
    async def main():
        fleet, log = resting({"a": ALL, "b": ALL})
        fleet["a"].faults["forget"] = EngineDeadError("gone")
        _, *members = await fleet.router.forget(DELETION, 5.0)
        assert [(one.worker, one.error) for one in members] == [("a", "engine_dead"), ("b", None)]
        assert log[-1] == "b is back"
        assert not any(one.num_rests for one in fleet.router.fleet.members)
        await fleet.router.aclose()

    run(main())


def test_a_deletion_that_is_given_up_leaves_nobody_passed_over():
    async def main():
        fleet, _ = resting({"a": ALL, "b": ALL})
        deletion = asyncio.create_task(fleet.router.forget(DELETION, 5.0))
        await asyncio.sleep(0.1)
        deletion.cancel()
        await asyncio.wait([deletion])
        assert not any(one.num_rests for one in fleet.router.fleet.members)
        await fleet.router.aclose()

    run(main())
