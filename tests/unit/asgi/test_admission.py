"""Admission is bounded, fair between tenants, first come first served within each, and gives everything back."""

import asyncio

import pytest

from chiasm.asgi.admission import Admission
from chiasm.errors import OverloadedError, ShuttingDownError
from chiasm.observability.receipt import StageClock
from chiasm.tenancy.fair_queue import Share


async def hold(admission, order, name, release):
    with admission.open():
        async with admission.slot(StageClock()):
            order.append(name)
            await release.wait()


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_slots_go_to_those_who_asked_first():
    admission, order, release = Admission(2, 10), [], asyncio.Event()
    tasks = [asyncio.create_task(hold(admission, order, name, release)) for name in range(6)]
    await settle()
    assert (admission.num_running, admission.num_queued) == (2, 4)
    release.set()
    await asyncio.gather(*tasks)
    assert order == list(range(6))
    assert (admission.num_open, admission.num_running) == (0, 0)


async def test_more_than_may_be_open_are_refused():
    admission, release = Admission(1, 2), asyncio.Event()
    tasks = [asyncio.create_task(hold(admission, [], name, release)) for name in range(3)]
    await settle()
    with pytest.raises(OverloadedError, match="1 requests run and 2 wait") as caught, admission.open():
        pytest.fail("not admitted")
    assert caught.value.retry_after_s >= 1
    release.set()
    await asyncio.gather(*tasks)
    with admission.open():
        assert admission.num_open == 1


async def test_without_a_queue_only_running_requests_are_open():
    admission = Admission(1, 0)
    with admission.open(), pytest.raises(OverloadedError), admission.open():
        pytest.fail("not admitted")


async def test_a_place_given_up_while_waiting_is_not_lost_for_the_next():
    admission, order, release = Admission(1, 10), [], asyncio.Event()
    tasks = [asyncio.create_task(hold(admission, order, name, release)) for name in range(4)]
    await settle()
    tasks[1].cancel()
    await settle()
    assert admission.num_open == 3
    release.set()
    await asyncio.gather(tasks[0], tasks[2], tasks[3])
    assert order == [0, 2, 3]
    assert (admission.num_open, admission.num_running) == (0, 0)


async def test_cancelling_at_the_moment_of_the_grant_frees_the_slot():
    admission, order, release = Admission(1, 10), [], asyncio.Event()
    tasks = [asyncio.create_task(hold(admission, order, name, release)) for name in range(3)]
    await settle()
    release.set()  # frees the slot, which the semaphore now hands to task 1 ...
    await asyncio.sleep(0)
    tasks[1].cancel()  # ... just as it leaves
    await asyncio.gather(*tasks, return_exceptions=True)
    assert 2 in order
    assert (admission.num_open, admission.num_running) == (0, 0)


async def test_closing_refuses_newcomers_and_lets_those_inside_finish():
    admission, order, release = Admission(1, 10), [], asyncio.Event()
    tasks = [asyncio.create_task(hold(admission, order, name, release)) for name in range(2)]
    await settle()
    admission.close()
    with pytest.raises(ShuttingDownError), admission.open():
        pytest.fail("not admitted")
    assert not await admission.wait_idle(0.01)
    release.set()
    assert await admission.wait_idle(5)
    assert order == [0, 1]
    await asyncio.gather(*tasks)


async def test_the_wait_grows_with_the_queue_and_the_run_time():
    admission = Admission(1, 100)
    admission.mean_run_s = 2.0
    with admission.open(), admission.open(), admission.open():
        assert admission._retry_after_s() == 8
        admission.mean_run_s = 1000.0
        assert admission._retry_after_s() == 60
    assert Admission(4, 0)._retry_after_s() == 1


class Request:
    """What may be displaced."""

    def __init__(self):
        self.error = None

    def interrupt(self, error):
        self.error = error


async def test_a_full_queue_makes_room_for_who_has_less_of_it():
    admission, loud, quiet = Admission(1, 3), Share("loud"), Share("quiet", weight=2.0)
    seats = [admission.open(loud) for _ in range(4)]
    for seat in seats:
        seat.__enter__()
        seat.request = Request()
    async with admission.slot(StageClock(), seats[0]):
        with admission.open(quiet), admission.open(quiet):
            assert [bool(seat.request.error) for seat in seats] == [False, False, True, True]
            assert isinstance(seats[3].request.error, OverloadedError)
            for seat in (seats[2], seats[3]):
                seat.__exit__()
            with pytest.raises(OverloadedError), admission.open(loud):
                pytest.fail("not admitted")
            with admission.open(quiet):
                assert seats[1].request.error
            seats[1].__exit__()
            with admission.open(quiet) as third:
                third.request = Request()
                with pytest.raises(OverloadedError), admission.open(quiet):
                    pytest.fail("who runs is not displaced")
    seats[0].__exit__()
    assert (admission.num_open, admission._num_leaving, loud.num_open, quiet.num_open) == (0, 0, 0, 0)
    assert [*admission._sharing, *loud.pending, *quiet.pending] == []


async def test_free_slots_go_to_tenants_in_turn():
    admission, order, release = Admission(1, 20), [], asyncio.Event()

    async def hold_for(share, name):
        with admission.open(share) as seat:
            async with admission.slot(StageClock(), seat):
                order.append(name)
                await release.wait()

    loud, quiet = Share("loud"), Share("quiet")
    tasks = [asyncio.create_task(hold_for(loud, f"loud{number}")) for number in range(6)]
    await settle()
    tasks += [asyncio.create_task(hold_for(quiet, f"quiet{number}")) for number in range(2)]
    await settle()
    release.set()
    await asyncio.gather(*tasks)
    assert order[:2] == ["loud0", "quiet0"]
    assert order.index("quiet1") < order.index("loud3")
    assert [name for name in order if name.startswith("loud")] == [f"loud{number}" for number in range(6)]


async def test_a_slot_given_back_as_the_next_one_gives_up_goes_to_the_one_after_it():
    admission, order, release = Admission(1, 10), [], asyncio.Event()
    tasks = [asyncio.create_task(hold(admission, order, name, release)) for name in range(3)]
    await settle()
    tasks[0].cancel()  # both at once, as by a deadline that they share
    tasks[1].cancel()
    await settle()
    assert (order, admission.num_running, admission.num_queued) == ([0, 2], 1, 0)
    release.set()
    await tasks[2]
    assert tasks[0].cancelled()
    assert tasks[1].cancelled()
    assert (admission.num_open, admission.num_running) == (0, 0)
