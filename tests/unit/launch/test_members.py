"""Workers of which other gateways tell: who is taken in, at which address, and who is let go of."""

import asyncio

import pytest

from chiasm.launch import members as members_room
from chiasm.launch.members import Members
from chiasm.routing.clock import SystemClock
from chiasm.routing.fleet import Fleet
from chiasm.settings import RoutingSettings
from chiasm.sharing.link import Link
from chiasm.sharing.local import LocalStore
from chiasm.sharing.presence import SharedWorker
from tests.conditions import until
from tests.fakes import FakeWorker


class Room:
    """Members that follow what a link tells them; connections always succeed."""

    def __init__(self):
        self.fleet = Fleet(RoutingSettings(), SystemClock())
        self.members = Members(self.fleet, self._connect)
        self.link = Link(LocalStore("a"))
        self.connected = []

    async def _connect(self, name, address):
        self.connected.append(address)
        return [(name, FakeWorker())]

    def tell(self, **addresses):
        self.link.workers = tuple(SharedWorker(name=name, address=address) for name, address in addresses.items())


@pytest.fixture
async def room(monkeypatch):
    monkeypatch.setattr(members_room, "_RETRY_INTERVAL_S", 0.01)
    monkeypatch.setattr("chiasm.launch.sick.SICK_S", 0.02)
    made = Room()
    keeping = asyncio.create_task(made.members.keep_announced(made.link))
    yield made
    keeping.cancel()
    await asyncio.wait([keeping])


async def test_a_worker_that_was_started_again_at_another_address_is_followed_once_it_is_down(room):
    room.tell(w="http://one:1")
    await until(lambda: room.connected == ["http://one:1"])
    room.tell(w="http://two:2", x="http://x:1")
    await until(lambda: room.connected == ["http://one:1", "http://x:1"])
    room.fleet.find("w").mark_down("connection lost")
    await until(lambda: room.connected[-1] == "http://two:2")
    await until(lambda: room.fleet.find("w").state == "starting")


async def test_a_worker_of_which_nobody_tells_any_more_stays_until_it_is_down(room):
    room.tell(w="http://one:1", x="http://x:1")
    await until(lambda: len(room.connected) == 2)
    room.tell()
    room.fleet.find("w").mark_down("connection lost")
    await until(lambda: room.fleet.find("w") is None)
    assert room.fleet.find("x") is not None
