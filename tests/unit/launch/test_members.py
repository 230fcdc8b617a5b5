"""Workers of which other gateways tell: who is taken in, at which address, and who is let go of."""

import asyncio

import pytest

from chiasm.launch import members as members_room
from chiasm.launch.members import Members
from chiasm.routing.clock import SystemClock
from chiasm.routing.costs.model import StageCosts
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


async def test_workers_that_were_started_here_share_cores_and_others_do_not():
    fleet = Fleet(RoutingSettings(), SystemClock())

    async def connect(name, address):
        return [(name, FakeWorker()), (f"{name}.1", FakeWorker())]

    members = Members(fleet, connect, crowding=0.5)
    await members.join("ours", "unix:x")
    keeping = asyncio.create_task(members.keep_listed([("listed", "http://other:1")]))
    await until(lambda: fleet.find("listed.1") is not None)
    keeping.cancel()
    await asyncio.wait([keeping])
    for member in fleet.members:
        member.mark_ready()
    found = {one.name: one.crowding for one in fleet.view(StageCosts(), 0.0).workers}
    assert found == {"ours": 0.5, "ours.1": 0.5, "listed": 0.0, "listed.1": 0.0}


@pytest.mark.parametrize("crowding", [0.0, 1.0])
async def test_a_setting_says_of_all_workers_how_far_they_share_cores(crowding):
    fleet = Fleet(RoutingSettings(crowding=crowding), SystemClock())
    for name in ("ours", "listed"):
        fleet.add(name, FakeWorker()).mark_ready()
    fleet.share_cores("ours", 0.5)
    assert {one.crowding for one in fleet.view(StageCosts(), 0.0).workers} == {crowding}
