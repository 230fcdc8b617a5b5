import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chiasm.media.pixel_budget import PixelBudget


async def turns(count=5):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_pixels_that_are_free_are_given_at_once():
    budget = PixelBudget(100)
    assert await budget.acquire(60) == 60
    assert await budget.acquire(40) == 40
    assert budget.num_used == 100


async def test_more_than_there_are_takes_all_alone():
    budget = PixelBudget(100)
    small = await budget.acquire(1)
    large = asyncio.create_task(budget.acquire(1000))
    await turns()
    assert not large.done()
    budget.release(small)
    assert await large == 100
    budget.release(100)
    assert budget.num_used == 0


async def test_first_come_first_served():
    budget = PixelBudget(100)
    await budget.acquire(80)
    order = []

    async def take(name, pixels):
        await budget.acquire(pixels)
        order.append(name)

    tasks = [asyncio.create_task(take(name, pixels)) for name, pixels in (("large", 90), ("small", 5))]
    await turns()
    assert order == []  # the small one would fit, but does not overtake
    budget.release(80)
    await asyncio.gather(*tasks)
    assert order == ["large", "small"]


async def test_a_cancelled_wait_lets_the_next_one_through():
    budget = PixelBudget(100)
    await budget.acquire(80)
    large = asyncio.create_task(budget.acquire(90))
    small = asyncio.create_task(budget.acquire(10))
    await turns()
    large.cancel()
    assert await small == 10
    assert budget.num_used == 90


async def test_cancelled_in_the_turn_in_which_it_is_granted():
    budget = PixelBudget(100)
    await budget.acquire(100)
    waiting = asyncio.create_task(budget.acquire(50))
    await turns()
    budget.release(100)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert budget.num_used == 0


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 150), st.integers(0, 4), st.booleans()), max_size=20))
def test_whatever_is_cancelled_all_pixels_come_back(jobs):
    async def run():
        budget = PixelBudget(100)

        async def job(pixels, delay):
            share = await budget.acquire(pixels)
            try:
                assert budget.num_used <= 100
                await turns(delay)
            finally:
                budget.release(share)

        tasks = [asyncio.create_task(job(pixels, delay)) for pixels, delay, _ in jobs]
        for task, (_, delay, cancel) in zip(tasks, jobs, strict=True):
            await turns(delay)
            if cancel and not task.done():
                task.cancel()
        results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
        for result in results:
            assert result is None or isinstance(result, asyncio.CancelledError)
        assert budget.num_used == 0
        assert await budget.acquire(100) == 100  # and nobody is left in the queue

    asyncio.run(run())
