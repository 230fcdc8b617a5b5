import asyncio

import pytest

from chiasm.workers.flights import SingleFlight


class Work:
    def __init__(self) -> None:
        self.runs = 0
        self.cancelled = 0
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> str:
        self.runs += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error:
            raise self.error
        return "result"


async def wait_for(flights: SingleFlight[str, str], work: Work) -> str:
    async with flights.join("key", work) as result:
        return result


async def test_many_waiters_share_one_run_and_the_result_is_discarded_once():
    discarded: list[tuple[str, bool]] = []
    flights, work = SingleFlight(lambda *result: discarded.append(result)), Work()
    tasks = [asyncio.create_task(wait_for(flights, work)) for _ in range(5)]
    await asyncio.sleep(0)
    work.gate.set()
    assert await asyncio.gather(*tasks) == ["result"] * 5
    assert (work.runs, discarded, len(flights)) == (1, [("result", True)], 0)


async def test_a_result_that_is_disowned_reaches_its_waiters_and_may_not_be_kept():
    discarded: list[tuple[str, bool]] = []
    flights, work = SingleFlight(lambda *result: discarded.append(result)), Work()
    assert flights.disown(lambda key: key == "key") == []
    task = asyncio.create_task(wait_for(flights, work))
    await asyncio.sleep(0)
    assert flights.disown(lambda key: key == "other") == []
    assert flights.disown(lambda key: key == "key") == ["key"]
    work.gate.set()
    assert await task == "result"
    assert await wait_for(flights, work) == "result"
    assert discarded == [("result", False), ("result", True)]


async def test_a_waiter_that_leaves_does_not_end_the_work_of_the_others():
    flights, work = SingleFlight(lambda *_: None), Work()
    first, second = (asyncio.create_task(wait_for(flights, work)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    work.gate.set()
    assert await second == "result"
    assert work.cancelled == 0


async def test_the_last_waiter_to_leave_cancels_the_work():
    flights, work = SingleFlight(lambda *_: None), Work()
    tasks = [asyncio.create_task(wait_for(flights, work)) for _ in range(2)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)
    assert (work.cancelled, len(flights)) == (1, 0)


async def test_an_error_reaches_every_waiter_and_the_next_caller_starts_anew():
    flights, work = SingleFlight(lambda *_: None), Work()
    work.error = RuntimeError("broken")
    work.gate.set()
    results = await asyncio.gather(*(wait_for(flights, work) for _ in range(3)), return_exceptions=True)
    assert [str(result) for result in results] == ["broken"] * 3
    work.error = None
    assert await wait_for(flights, work) == "result"
    assert work.runs == 2


async def test_a_caller_after_the_last_has_left_starts_anew():
    flights, work = SingleFlight(lambda *_: None), Work()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await wait_for(flights, work)
    work.gate.set()
    assert await wait_for(flights, work) == "result"
    assert work.runs == 2
