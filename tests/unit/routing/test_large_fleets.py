"""Fleets of which a request looks at a sample only."""

from chiasm.errors import EngineDeadError
from tests.unit.routing.fleets import outcome_of, serving
from tests.unit.routing.scripted import ALL, ask, expected_answer, picture
from tests.unit.routing.virtual_time import run

MANY = {f"w{n}": ALL for n in range(40)}
SPLIT = {**{f"e{n}": ("encode",) for n in range(20)}, **{f"pd{n}": ALL for n in range(20)}}


def test_answers_are_the_same_over_a_sample():
    async def main():
        async with serving("e-pd", SPLIT, policy="adaptive", max_candidates=2) as fleet:
            for number in range(20):
                request = ask(f"question {number}", picture("a"), picture(str(number)), request_id=f"r{number}")
                outcome = await outcome_of(fleet, request)
                assert outcome.error is None
                assert outcome.words == expected_answer(request)

    run(main())


def test_a_conversation_goes_back_to_the_worker_that_has_it():
    async def main():
        async with serving("auto", MANY, policy="content", max_candidates=2) as fleet:
            asked = [ask("x" * 600, picture("a"), request_id=f"r{n}") for n in range(6)]
            workers = {(await outcome_of(fleet, request)).attempts[-1][1] for request in asked}
            assert len(workers) == 1

    run(main())


def test_a_few_that_are_left_of_many_are_found():
    async def main():
        async with serving("auto", MANY, max_candidates=2) as fleet:
            for name in list(MANY)[:-1]:
                fleet.router.fleet.blame(name, EngineDeadError("gone"))
            outcome = await outcome_of(fleet, ask("hello"))
            assert outcome.error is None
            assert outcome.attempts == [("prefill", "w39", "ok")]

    run(main())
