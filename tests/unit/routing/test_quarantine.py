"""What workers die of: not given to a third one, for a while; neighbours that are served are cleared."""

import asyncio

import pytest

from chiasm.errors import EngineDeadError, QuarantinedError
from chiasm.routing.quarantine import Case, Quarantine
from chiasm.settings import RoutingSettings
from tests.unit.routing.fleets import outcome_of, serving
from tests.unit.routing.scripted import ask, expected_answer, picture
from tests.unit.routing.virtual_time import run

THREE = {f"w{n}": ("encode", "prefill", "decode") for n in range(3)}


class Clock:
    def __init__(self):
        self.time_s = 100.0

    def now_s(self):
        return self.time_s

    def unix_s(self):
        return self.time_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def quarantine(clock):
    return Quarantine(RoutingSettings(quarantine_deaths=2, quarantine_s=60.0), clock)


def case_of(quarantine, *pictures, text="what is this"):
    request = ask(text, *map(picture, pictures))
    return Case(quarantine, request.items, request.prompt)


def test_a_request_is_refused_after_as_many_deaths_as_are_allowed_and_taken_again_later(quarantine, clock):
    case = case_of(quarantine, "a")
    case.died("w0", ())
    case.check()
    clock.time_s += 5
    case_of(quarantine, "a").died("w0", ())  # it was started again
    with pytest.raises(QuarantinedError):
        case_of(quarantine, "a").check()
    case_of(quarantine, "a", text="something else").check()
    case_of(quarantine, "b").check()
    clock.time_s += 61
    case.check()


def test_calls_that_fail_together_tell_of_one_death(quarantine):
    for _ in range(5):
        case_of(quarantine, "a").died("w0", ())
    case_of(quarantine, "a").check()
    case_of(quarantine, "a").died("w1", ())
    with pytest.raises(QuarantinedError):
        case_of(quarantine, "a").check()


def test_engines_of_one_server_die_one_death(clock):
    fleet = {"w0": "w0", "w0.1": "w0", "w1": "w1"}
    quarantine = Quarantine(RoutingSettings(quarantine_deaths=2, quarantine_s=60.0), clock, fleet.__getitem__)
    for worker in ("w0", "w0.1"):
        case_of(quarantine, "a").died(worker, ())
    case_of(quarantine, "a").check()
    case_of(quarantine, "a").died("w1", ())
    with pytest.raises(QuarantinedError):
        case_of(quarantine, "a").check()


def test_a_picture_is_suspected_whatever_is_asked_about_it(quarantine, clock):
    for worker in ("e0", "e1"):
        case_of(quarantine, "a", "b").died(worker, [picture("a").identity])
    with pytest.raises(QuarantinedError):
        case_of(quarantine, "a", text="another question").check()
    case_of(quarantine, "b").check()


def test_what_was_served_is_cleared(quarantine):
    case = case_of(quarantine, "a")
    case.died("w0", ())
    case.served()
    case.died("w1", ())
    case.check()


def test_what_is_remembered_is_bounded(quarantine):
    for number in range(5000):
        case_of(quarantine, text=str(number)).died("w0", ())
    assert len(quarantine) <= 1024


def test_nothing_is_refused_where_that_is_switched_off(clock):
    quarantine = Quarantine(RoutingSettings(quarantine_deaths=0), clock)
    for worker in ("w0", "w1", "w2"):
        case_of(quarantine).died(worker, ())
    case_of(quarantine).check()


def test_a_poisonous_request_kills_two_workers_and_not_the_third():
    async def main():
        async with serving("agg", THREE, wait_for_worker_s=0.0) as fleet:
            for worker in fleet.workers.values():
                worker.faults["prefill"] = ["die"]
            poison = ask("poison", picture("p"), timeout_s=60.0)
            assert isinstance((await outcome_of(fleet, poison)).error, EngineDeadError)
            assert sum(worker.is_dead for worker in fleet.workers.values()) == 2
            again = await outcome_of(fleet, ask("poison", picture("p"), request_id="again", timeout_s=60.0))
            assert isinstance(again.error, QuarantinedError)
            assert sum(worker.is_dead for worker in fleet.workers.values()) == 2
            assert fleet.router.stats().totals["requests_quarantined"] == 1
            alive = next(worker for worker in fleet.workers.values() if not worker.is_dead)
            alive.faults["prefill"] = []
            other = ask("harmless", picture("h"), request_id="other", timeout_s=60.0)
            assert (await outcome_of(fleet, other)).words == expected_answer(other)

    run(main())


def test_a_poisonous_picture_is_not_given_to_encoders_again():
    async def main():
        async with serving("e-pd", local_encode="never", wait_for_worker_s=0.0) as fleet:
            fleet.add("e2", ("encode",))
            for name in ("e0", "e1", "e2"):
                fleet[name].faults["encode"] = ["die"]
            assert (await outcome_of(fleet, ask("one", picture("p"), timeout_s=60.0))).error is not None
            second = await outcome_of(fleet, ask("two", picture("p"), request_id="two", timeout_s=60.0))
            assert isinstance(second.error, QuarantinedError)
            assert sum(worker.is_dead for worker in fleet.workers.values()) == 2

    run(main())


def test_neighbours_of_a_poisonous_request_are_served_and_cleared():
    async def main():
        async with serving("agg", THREE, wait_for_worker_s=0.0) as fleet:
            fleet["w0"].faults["prefill"] = ["die"]
            asked = [outcome_of(fleet, ask(f"text {n}", request_id=f"r{n}", timeout_s=60.0)) for n in range(6)]
            outcomes = await asyncio.gather(*asked)
            assert all(outcome.error is None for outcome in outcomes)
            assert len(fleet.router._parts.quarantine) == 0

    run(main())
