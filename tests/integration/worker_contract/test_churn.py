"""Many requests that finish, fail, are cancelled or run out of time at random: nothing stays open at either end."""

import asyncio
import random
from contextlib import aclosing

import pytest

from chiasm.errors import ChiasmError
from chiasm.protocol.generation import GenerateRequest, SamplingParams, TextPrompt
from tests.fakes import FakeWorker, by_prompt
from tests.integration.gateway_server import until
from tests.integration.worker_contract.servers import CARRIERS, remote

NUM_REQUESTS = 300
NUM_AT_ONCE = 24


def request(rng, number):
    text, timeout_s = rng.choice(
        [("a b c", 60.0), ("slow " * 6, 60.0), ("fail 0 x", 60.0), ("fail 2 x y z", 60.0), ("hang 1 x", 0.05)]
    )
    return GenerateRequest(
        request_id=f"r{number}",
        prompt=TextPrompt(text),
        sampling=SamplingParams(n=rng.choice([1, 1, 3])),
        stream=rng.random() < 0.7,
        timeout_s=timeout_s,
    )


async def one(worker, rng, number):
    """How a request ended: 'finished', 'left' or the code of its error."""
    leaves_after, num_events = rng.choice([None, None, None, 1, 2]), 0
    try:
        async with aclosing(worker.generate(request(rng, number))) as events:
            async for _ in events:
                num_events += 1
                if num_events == leaves_after:
                    return "left"
    except ChiasmError as error:
        return error.code
    return "finished"


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_nothing_stays_open(carrier, tmp_path):
    rng, endings, gate = random.Random(5), [], asyncio.Semaphore(NUM_AT_ONCE)
    fake = FakeWorker(by_prompt())
    async with remote(fake, carrier, tmp_path) as (app, worker):
        tasks_before = len(asyncio.all_tasks())

        async def guarded(number):
            async with gate:
                if rng.random() < 0.1:  # cancelled from outside, wherever it is
                    task = asyncio.create_task(one(worker, rng, number))
                    await asyncio.sleep(rng.random() * 0.01)
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                    endings.append("cancelled")
                else:
                    endings.append(await one(worker, rng, number))

        await asyncio.gather(*(guarded(number) for number in range(NUM_REQUESTS)))
        await until(lambda: not (fake.num_open or app.admission.num_open))
        assert len(endings) == NUM_REQUESTS
        assert set(endings) == {"finished", "left", "cancelled", "deadline_exceeded", "internal_error"}
        pool = worker._connection
        await until(lambda: pool._channels == set(pool._idle))
        assert len(pool._idle) <= NUM_AT_ONCE
        await until(lambda: len(asyncio.all_tasks()) <= tasks_before + len(pool._idle))
