"""Deadlines of many requests by one timer."""

import asyncio

from chiasm.asgi.deadlines import Deadlines, deadlines_after


class Noted:
    """Notes when it expired."""

    def __init__(self, loop):
        self.loop = loop
        self.expired_s = None
        self.is_expired = asyncio.Event()

    def expire(self):
        assert self.expired_s is None
        self.expired_s = self.loop.time()
        self.is_expired.set()


class CountingLoop:
    """A loop whose time is set by hand."""

    def __init__(self):
        self.now_s = 0.0
        self.timers = []

    def time(self):
        return self.now_s

    def call_at(self, when_s, callback):
        self.timers.append((when_s, callback))

    def run_until(self, now_s):
        while self.timers and self.timers[0][0] <= now_s:
            self.now_s, callback = self.timers.pop(0)
            callback()
        self.now_s = now_s


async def test_each_expires_at_its_time_and_only_those_that_are_left():
    loop = CountingLoop()
    deadlines, requests = Deadlines(loop), []
    for number in range(5):
        loop.now_s = float(number)
        requests.append(Noted(loop))
        deadlines.add(requests[-1], loop.now_s + 10)
    deadlines.discard(requests[0])
    deadlines.discard(requests[3])
    loop.run_until(100)
    assert [one.expired_s for one in requests] == [None, 11, 12, None, 14]
    assert len(deadlines) == 0


async def test_there_is_one_timer_however_many_come_and_none_when_nothing_is_left():
    loop = CountingLoop()
    deadlines = Deadlines(loop)
    for _ in range(1000):
        request = Noted(loop)
        deadlines.add(request, loop.now_s + 10)
        deadlines.discard(request)
        loop.now_s += 0.001
    assert len(loop.timers) == 1
    loop.run_until(60)
    assert not loop.timers
    late = Noted(loop)
    deadlines.add(late, 70)
    loop.run_until(80)
    assert late.expired_s == 70


async def test_a_timer_that_comes_a_little_early_counts():
    loop = CountingLoop()
    deadlines, request = Deadlines(loop), Noted(loop)
    deadlines.add(request, 10)
    loop.timers = [(9.9995, loop.timers[0][1])]
    loop.run_until(9.9995)
    assert request.expired_s == 9.9995


async def test_the_loops_own_timers_serve():
    loop = asyncio.get_running_loop()
    request, started_s = Noted(loop), loop.time()
    deadlines = deadlines_after(0.02, loop)
    deadlines.add(request, started_s + 0.02)
    async with asyncio.timeout(10):
        await request.is_expired.wait()
    assert request.expired_s - started_s >= 0.018
    assert deadlines_after(0.02, loop) is deadlines


def test_each_loop_has_its_own():
    async def mine():
        loop = asyncio.get_running_loop()
        assert deadlines_after(1.0, loop).loop is loop
        return deadlines_after(1.0, loop)

    assert asyncio.run(mine()) is not asyncio.run(mine())


async def test_one_that_another_takes_out_as_it_expires_does_not_expire():
    loop = CountingLoop()
    deadlines = Deadlines(loop)
    taken_out = Noted(loop)

    class Taking(Noted):
        def expire(self):
            super().expire()
            deadlines.discard(taken_out)

    first, last = Taking(loop), Noted(loop)
    for request in (first, taken_out, last):
        deadlines.add(request, 10.0)
    loop.run_until(11.0)
    assert first.expired_s == last.expired_s == 10.0
    assert taken_out.expired_s is None
