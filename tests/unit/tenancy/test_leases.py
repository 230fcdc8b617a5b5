"""Limits over several gateways in virtual time: what all of them allow together, with the store and without."""

import asyncio

import pytest

from chiasm.errors import RateLimitedError
from chiasm.sharing.link import TTL_S, Link
from chiasm.sharing.local import Hub, LocalStore
from chiasm.sharing.presence import Presence
from chiasm.tenancy.leases import Leases
from chiasm.tenancy.limits import Limits, Meter


class Fragile(LocalStore):
    """A store that can be taken away."""

    is_gone = False
    num_calls = 0

    async def announce(self, record, ttl_s):
        self._look()
        return await super().announce(record, ttl_s)

    async def draw(self, asks):
        self._look()
        return await super().draw(asks)

    async def hold(self, asks):
        self._look()
        return await super().hold(asks)

    def _look(self):
        Fragile.num_calls += 1
        if Fragile.is_gone:
            raise ConnectionError("gone")


class Front:
    """One gateway's part: a meter, and the requests that it has open."""

    def __init__(self, name, hub, limits):
        self.clock = hub.clock
        self.link = Link(Fragile(name, hub), self.clock)
        self.link.presence = Presence(is_serving=True)
        self.meter = Meter("t", limits, self.clock())
        self.leases = Leases(self.link, lambda: [self.meter], self.clock)
        self.link.add(self.leases)

    async def ask(self, *, stays=False):
        """Whether a request comes in."""
        await self.leases.cover(self.meter)
        try:
            self.meter.admit(self.clock())
        except RateLimitedError:
            return False
        self.meter.share.num_open += stays
        return True


class Fleet:
    """Several gateways over one store, in virtual time."""

    def __init__(self, limits, num=3):
        self.now_s = 0.0
        Fragile.is_gone, Fragile.num_calls = False, 0
        hub = Hub(lambda: self.now_s)
        self.fronts = [Front(f"g{number}", hub, limits) for number in range(num)]

    async def rounds(self, count=1):
        for _ in range(count):
            for front in self.fronts:
                if front.link.is_up or self.now_s >= front.link._retry_at_s:
                    await front.link.round()
            self.now_s += 0.25

    async def flood(self, seconds, each=8):
        """Let every gateway be asked far too often for a while; returns how many came in."""
        num = 0
        for _ in range(round(seconds / 0.25)):
            for _ in range(each):
                num += sum([await front.ask() for front in self.fronts])
            await self.rounds()
        return num


@pytest.mark.parametrize("per_minute", [6, 60, 600])
async def test_a_rate_holds_over_all_gateways(per_minute):
    fleet = Fleet(Limits(max_requests_per_minute=per_minute))
    await fleet.rounds(2)
    num = await fleet.flood(60)
    most = per_minute + max(1, per_minute / 6)
    assert 0.9 * per_minute <= num <= most


async def test_a_gateway_that_is_asked_alone_gets_the_whole_rate():
    fleet = Fleet(Limits(max_requests_per_minute=120))
    await fleet.rounds()
    num = 0
    for _ in range(240):
        num += await fleet.fronts[0].ask()
        await fleet.rounds()
    assert 0.9 * 120 <= num <= 120 + 20


async def test_an_active_tenant_needs_no_answer_of_the_store():
    fleet = Fleet(Limits(max_requests_per_minute=6000))
    await fleet.rounds()
    for _ in range(40):
        assert await fleet.fronts[0].ask()
        await fleet.rounds()
    before = Fragile.num_calls
    for _ in range(3):
        assert await fleet.fronts[0].ask()
    assert Fragile.num_calls == before


async def test_a_flood_that_is_refused_does_not_ask_the_store_each_time():
    fleet = Fleet(Limits(max_requests_per_minute=6))
    await fleet.rounds()
    assert await fleet.fronts[0].ask()
    before = Fragile.num_calls
    for _ in range(100):
        assert not await fleet.fronts[0].ask()
    assert Fragile.num_calls - before <= 3


async def test_tokens_used_at_one_gateway_are_owed_at_all():
    fleet = Fleet(Limits(max_tokens_per_minute=60))
    await fleet.rounds()
    assert await fleet.fronts[0].ask()
    fleet.fronts[0].meter.use(fleet.now_s, tokens=100)
    await fleet.rounds(2)
    assert not any([await front.ask() for front in fleet.fronts])
    await fleet.rounds(4 * 100)
    assert await fleet.fronts[1].ask()


@pytest.mark.parametrize("most", [2, 7, 64])
async def test_open_requests_are_bounded_over_all_gateways(most):
    fleet = Fleet(Limits(max_concurrent_requests=most))
    await fleet.rounds()
    opened = 0
    for _ in range(2 * most):
        opened += sum([await front.ask(stays=True) for front in fleet.fronts])
        await fleet.rounds()
    assert opened == most


async def test_requests_at_once_are_covered_by_few_calls_and_all_come_in():
    fleet = Fleet(Limits(max_concurrent_requests=100))
    await fleet.rounds()
    before = Fragile.num_calls
    assert all(await asyncio.gather(*(fleet.fronts[0].ask(stays=True) for _ in range(50))))
    assert Fragile.num_calls - before <= 4


async def test_permits_that_are_not_used_any_more_are_there_for_others():
    fleet = Fleet(Limits(max_concurrent_requests=4))
    await fleet.rounds()
    first, second, _ = fleet.fronts
    assert all([await first.ask(stays=True) for _ in range(4)])
    assert not await second.ask(stays=True)
    first.meter.share.num_open = 0
    await fleet.rounds(2)
    assert all([await second.ask(stays=True) for _ in range(4)])


async def test_permits_of_a_gateway_that_is_killed_come_back():
    fleet = Fleet(Limits(max_concurrent_requests=4))
    await fleet.rounds()
    dead = fleet.fronts.pop()
    assert all([await dead.ask(stays=True) for _ in range(4)])
    await fleet.rounds(4)
    assert not await fleet.fronts[0].ask(stays=True)
    await fleet.rounds(int(TTL_S / 0.25) + 1)
    assert all([await fleet.fronts[0].ask(stays=True) for _ in range(4)])


async def test_without_the_store_each_gateway_has_its_part_and_then_shares_again(caplog):
    fleet = Fleet(Limits(max_requests_per_minute=60, max_concurrent_requests=9))
    await fleet.rounds(2)
    Fragile.is_gone = True
    await fleet.rounds()
    assert all(front.link.is_degraded for front in fleet.fronts)
    before = Fragile.num_calls
    assert await fleet.flood(60) <= 60 + 10
    assert Fragile.num_calls - before < 3 * 60 / 1.9, "it is asked less and less often"
    for front in fleet.fronts:
        assert [await front.ask(stays=True) for _ in range(5)].count(True) <= 3
        front.meter.share.num_open = 0
    assert caplog.text.count("does not answer") == 3
    Fragile.is_gone = False
    await fleet.rounds(20)
    assert not any(front.link.is_degraded for front in fleet.fronts)
    assert 50 <= await fleet.flood(60) <= 60 + 10 + 10 / 2, "half a burst may lie in slices when the flood begins"


async def test_gateways_that_start_without_the_store_take_it_that_they_are_not_alone():
    fleet = Fleet(Limits(max_requests_per_minute=60, max_concurrent_requests=8), num=2)
    Fragile.is_gone = True
    for front in fleet.fronts:
        await front.link.round()
        front.leases.adopt(front.meter)
        assert [await front.ask(stays=True) for _ in range(8)].count(True) == 4
        front.meter.share.num_open = 0
    assert await fleet.flood(60) <= 60 + 10


async def test_permits_that_are_given_back_are_not_used_while_the_store_answers():
    fleet = Fleet(Limits(max_concurrent_requests=4), num=1)
    (front,) = fleet.fronts
    await fleet.rounds()
    assert all([await front.ask(stays=True) for _ in range(4)])
    front.meter.share.num_open = 1
    ask = front.meter.permit_ask(1)
    assert ask.wanted < 4
    while not front.meter.is_short(fleet.now_s):
        front.meter.share.num_open += 1
    assert front.meter.share.num_open == ask.wanted


async def test_a_debt_survives_the_loss_of_the_store():
    fleet = Fleet(Limits(max_tokens_per_minute=60), num=1)
    await fleet.rounds()
    (front,) = fleet.fronts
    assert await front.ask()
    front.meter.use(fleet.now_s, tokens=100)
    Fragile.is_gone = True
    await fleet.rounds()
    assert not await front.ask()
    Fragile.is_gone = False
    await fleet.rounds(20)
    assert not await front.ask()


async def test_new_limits_are_leased_too():
    fleet = Fleet(Limits(), num=2)
    await fleet.rounds()
    for front in fleet.fronts:
        front.meter.limit(Limits(max_requests_per_minute=6), fleet.now_s)
    assert sum([await front.ask() for front in fleet.fronts]) == 1
