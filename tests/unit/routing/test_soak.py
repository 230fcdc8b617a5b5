"""Many requests, faults and callers who leave, at random: every one ends once, and nothing stays behind."""

import asyncio
import random

import pytest

from chiasm.errors import EngineStepError, OverloadedError, TransferError
from tests.unit.routing.fleets import TOPOLOGIES, outcome_of, serving
from tests.unit.routing.scripted import ask, expected_answer, picture
from tests.unit.routing.virtual_time import run

NUM_REQUESTS = 120
TIMEOUT_S = 30.0
FAULTS = {
    "encode": ["hang", "lose", "corrupt", "misshape", EngineStepError("step"), OverloadedError("full")],
    "prefill": ["hang", EngineStepError("step"), TransferError("lost"), OverloadedError("full")],
    "decode": ["hang", EngineStepError("step"), TransferError("lost")],
}


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("policy", ["round_robin", "adaptive"])
def test_everything_ends_and_nothing_leaks(topology, policy):
    chance = random.Random(5)

    async def one(fleet, index):
        names = [f"p{chance.randrange(40)}" for _ in range(chance.choice((0, 1, 1, 2, 4)))]
        request = ask(f"question {index}", *(picture(n) for n in names), request_id=f"r{index}", timeout_s=TIMEOUT_S)
        task = asyncio.create_task(outcome_of(fleet, request))
        if chance.random() < 0.1:
            await asyncio.sleep(chance.uniform(0.0, 0.2))
            task.cancel()
        start_s = asyncio.get_running_loop().time()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        assert asyncio.get_running_loop().time() - start_s <= TIMEOUT_S + 0.6
        if isinstance(outcome, asyncio.CancelledError):
            return "cancelled"
        if outcome.error is None:
            assert outcome.words == expected_answer(request)
            return "finished"
        assert outcome.words == expected_answer(request)[: len(outcome.words)]
        return outcome.error.code

    async def main():
        async with serving(topology, policy=policy) as fleet:
            tasks = []
            for index in range(NUM_REQUESTS):
                if chance.random() < 0.1:
                    stage = chance.choice(list(FAULTS))
                    chance.choice(list(fleet.workers.values())).faults[stage].append(chance.choice(FAULTS[stage]))
                tasks.append(asyncio.create_task(one(fleet, index)))
                await asyncio.sleep(chance.expovariate(20.0))
            ends = await asyncio.gather(*tasks)
            assert ends.count("finished") > 0.8 * NUM_REQUESTS
            assert ends.count("cancelled") > 2
            assert {member.state for member in fleet.router.fleet.members} == {"ready"}

    run(main())
