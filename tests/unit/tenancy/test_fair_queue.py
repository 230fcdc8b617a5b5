"""Fairness in virtual time: requests, slots and tenants as events, over the queue and the meters that servers have."""

import heapq
from random import Random
from statistics import fmean

import pytest

from chiasm.errors import RateLimitedError
from chiasm.tenancy.fair_queue import FairQueue, Share
from chiasm.tenancy.limits import Limits, Meter

RUN_S = 1.0


class Fleet:
    """So many slots. Each tenant's requests come at random, as from many people, and run for a time of its own."""

    def __init__(self, num_slots):
        self.queue, self.num_free, self.events, self.sequence = FairQueue(), num_slots, [], 0
        self.waits_s: dict[str, list[float]] = {}
        self.served_s: dict[str, float] = {}
        self.meters: dict[str, Meter] = {}

    def tenant(self, name, *, per_s, until_s, start_s=0.0, run_s=RUN_S, limits=None):
        self.meters[name] = Meter(name, limits or Limits(), 0.0)
        arrivals, when_s = Random(name), start_s  # a tenant's are the same, whatever the others do
        while (when_s := when_s + arrivals.expovariate(per_s)) < until_s:
            self.at(when_s, self.arrive, name, run_s)
        return self

    def at(self, when_s, act, *arguments):
        self.sequence += 1
        heapq.heappush(self.events, (when_s, self.sequence, act, arguments))

    def arrive(self, now_s, name, run_s):
        meter = self.meters[name]
        try:
            meter.admit(now_s)
        except RateLimitedError:
            return
        self.queue.push(meter.share, (name, now_s, run_s))
        self.fill(now_s)

    def fill(self, now_s):
        while self.num_free and self.queue:
            share, (name, came_s, run_s) = self.queue.pop()
            self.num_free -= 1
            self.queue.start(share, RUN_S)
            self.waits_s.setdefault(name, []).append(now_s - came_s)
            self.at(now_s + run_s, self.end, share, name, run_s)

    def end(self, now_s, share, name, run_s):
        self.served_s[name] = self.served_s.get(name, 0.0) + run_s
        self.num_free += 1
        self.queue.end(share, run_s, RUN_S)
        self.fill(now_s)

    def run(self, until_s=float("inf")):
        while self.events and self.events[0][0] <= until_s:
            now_s, _, act, arguments = heapq.heappop(self.events)
            act(now_s, *arguments)
        return self


def test_a_tenant_that_floods_ten_times_its_limit_raises_anothers_wait_by_less_than_a_tenth():
    def wait_s(times):
        limits = Limits(max_requests_per_minute=120)
        fleet = Fleet(4).tenant("quiet", per_s=1, until_s=4_000)
        return fmean(fleet.tenant("loud", per_s=2 * times, until_s=4_000, limits=limits).run().waits_s["quiet"])

    assert 0.02 < wait_s(10) < 1.1 * wait_s(1)


def test_a_flood_without_any_limit_costs_another_tenant_one_slots_turn():
    fleet = Fleet(4).tenant("loud", per_s=40, until_s=300).tenant("quiet", per_s=1, until_s=300, start_s=10)
    waits_s = fleet.run(300).waits_s["quiet"]
    assert fmean(waits_s) < RUN_S / 2
    assert fmean(fleet.waits_s["loud"][-100:]) > 100


@pytest.mark.parametrize("weights", [(1, 1), (3, 1), (1, 5)])
def test_slots_are_shared_by_weight_whatever_requests_take(weights):
    fleet = Fleet(4)
    for name, weight, run_s in (("short", weights[0], 0.25), ("long", weights[1], 4.0)):
        fleet.tenant(name, per_s=20, until_s=1000, run_s=run_s, limits=Limits(weight=weight))
    fleet.run(1000)
    assert fleet.served_s["short"] / fleet.served_s["long"] == pytest.approx(weights[0] / weights[1], rel=0.05)


def test_who_was_away_has_saved_up_nothing():
    fleet = Fleet(1).tenant("steady", per_s=2, until_s=200).tenant("late", per_s=2, until_s=200, start_s=100)
    fleet.run(150)
    assert fleet.served_s["late"] == pytest.approx(25, abs=2)


def test_one_tenants_requests_keep_their_order_and_none_is_lost():
    queue, share, other = FairQueue(), Share("a"), Share("b")
    for number in range(4):
        queue.push(share, number)
    queue.push(other, "b")
    queue.remove(share, 1)
    queue.remove(share, 1)
    assert len(queue) == 4
    order = []
    while queue:
        who, what = queue.pop()
        queue.start(who, 1.0)
        order.append(what)
    assert order == [0, "b", 2, 3]


def test_nothing_is_kept_of_tenants_that_have_nothing_open():
    queue = FairQueue()
    for name in range(100):
        share = Share(str(name))
        queue.push(share, name)
        queue.pop()
        queue.start(share, 1.0)
        queue.end(share, 2.0, 1.0)
    assert not queue._present
