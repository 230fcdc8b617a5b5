"""The link to a store: who is there, and how its loss is noticed, said once and got over."""

import asyncio
import logging

import pytest

from chiasm.sharing import link as link_room
from chiasm.sharing.link import Link
from chiasm.sharing.local import Hub, LocalStore
from chiasm.sharing.presence import Presence, SharedWorker, decode_presence


class Store(LocalStore):
    """One that may be gone, or may not answer."""

    is_gone = False
    is_slow = False
    num_announced = 0

    async def announce(self, record, ttl_s):
        self.num_announced += 1
        if self.is_gone:
            raise ConnectionError("ConnectionRefusedError")
        if self.is_slow:
            await asyncio.Event().wait()
        return await super().announce(record, ttl_s)


class Part:
    """Counts what it is told."""

    num_rounds = num_lost = 0

    async def round(self):
        self.num_rounds += 1

    def lost(self):
        self.num_lost += 1


@pytest.fixture
def links():
    hub = Hub()
    return [Link(Store(name, hub)) for name in "ab"]


async def test_gateways_see_each_other(links):
    a, b = links
    a.presence = Presence(is_serving=True, workers=(SharedWorker(name="w", address="http://h:1"),))
    b.presence = Presence()
    assert a.is_degraded, "nothing is known before the store has answered"
    for link in (a, b, a):
        await link.round()
    assert (a.num_gateways, b.num_gateways) == (1, 2), "one that does not serve yet has no part of the limits"
    assert b.others == {"a": a.presence}
    assert b.workers == a.presence.workers
    await a.aclose()
    await b.round()
    assert (b.num_gateways, b.others) == (1, {})


@pytest.mark.parametrize("fault", ["is_gone", "is_slow"])
async def test_a_store_that_is_lost_is_said_once_and_left_alone(links, fault, caplog, monkeypatch):
    monkeypatch.setattr(link_room, "DEADLINE_S", 0.01)
    caplog.set_level(logging.INFO)
    link, part = links[0], Part()
    link.add(part)
    await link.round()
    setattr(link.store, fault, True)
    for _ in range(3):
        await link.round()
    assert link.is_degraded
    assert link.num_failures == 3
    assert (part.num_rounds, part.num_lost) == (1, 1)
    before = link.store.num_announced
    with pytest.raises(ConnectionError):
        await link.call(lambda store: store.announce(b"", 1))
    assert link.store.num_announced == before, "nobody waits for a store that is known to be gone"
    setattr(link.store, fault, False)
    await link.round()
    assert not link.is_degraded
    assert part.num_rounds == 2
    said = [record.levelname for record in caplog.records if "shared store" in record.message]
    assert said == ["INFO", "WARNING", "INFO"]


async def test_a_store_that_was_never_there_is_said_once(links, caplog):
    links[0].store.is_gone = True
    for _ in range(3):
        await links[0].round()
    assert caplog.text.count("does not answer") == 1


async def test_pauses_between_tries_grow(links):
    link = links[0]
    link.store.is_gone = True
    pauses = []
    for _ in range(6):
        await link.round()
        pauses.append(link._pause_s)
    assert pauses == [0.25, 0.5, 1, 2, 4, 4]


async def test_limits_are_divided_by_those_last_there_also_while_they_come_back_or_by_an_assumption(links):
    now_s = 0.0
    a, b = (Link(link.store, lambda: now_s) for link in links)
    a.store.is_gone = True
    await a.round()
    assert a.num_sharing == link_room.ASSUMED_GATEWAYS, "it was never told how many there are"
    assert Link(a.store, assumed_gateways=7).num_sharing == 7, "but may be told"
    a.store.is_gone = False
    third = Link(Store("c", a.store._hub), lambda: now_s)
    for link in (a, b, third):
        link.presence = Presence(is_serving=True)
    for link in (b, third, a):
        await link.round()
    assert a.num_sharing == 3
    a.store.is_gone = True
    await a.round()
    a.store.is_gone = False
    a.store._hub.records.clear()
    await a.round()
    assert (a.num_gateways, a.num_sharing) == (1, 3), "the others have yet to come back"
    now_s += link_room.TTL_S + 1.0
    await a.round()
    assert (a.num_gateways, a.num_sharing) == (1, 1)


async def test_a_gateway_alone_is_never_degraded():
    link = Link(LocalStore("a"))
    assert not link.is_degraded
    await link.round()
    assert (link.num_gateways, link.num_sharing) == (1, 1)


@pytest.mark.parametrize("record", [b"", b"nonsense", b"\x91" * 5000, b"\x81\xa7workers\x01"])
def test_what_cannot_be_understood_says_nothing(record):
    assert decode_presence(record) == Presence()
