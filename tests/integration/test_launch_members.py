"""Workers that join a fleet by address or by registering in a folder, and leave it again."""

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest

from chiasm.errors import ChiasmError, EngineDeadError, EngineStartError
from chiasm.launch.crew import remote_connect
from chiasm.launch.members import Members
from chiasm.launch.server import bind_unix, serve_app
from chiasm.routing.clock import SystemClock
from chiasm.routing.fleet import Fleet
from chiasm.settings import RoutingSettings
from chiasm.workers.server import WorkerServerLimits, create_worker_app
from tests.fakes import FakeWorker

DEADLINE_S = 30.0
TOKEN = "between us"


@asynccontextmanager
async def listening(path, worker):
    """A worker's server on a Unix socket."""
    limits, stop, ready = WorkerServerLimits(token=TOKEN), asyncio.Event(), asyncio.Event()
    app = create_worker_app(worker, limits)
    serving = asyncio.create_task(serve_app(app, app, bind_unix(str(path)), limits, stop, ready.set))
    await asyncio.wait_for(ready.wait(), DEADLINE_S)
    try:
        yield f"unix:{path}"
    finally:
        stop.set()
        await serving


async def until(condition):
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - a fleet sets no events
            await asyncio.sleep(0.01)


@pytest.fixture
def fleet():
    return Fleet(RoutingSettings(), SystemClock())


@pytest.fixture
async def members(fleet):
    made = Members(fleet, remote_connect(TOKEN))
    yield made
    for member in fleet.members:
        await made.leave(member.name)


def names(fleet):
    return [member.name for member in fleet.members]


async def test_a_worker_joins_under_a_given_name_or_its_own_and_leaves(fleet, members, tmp_path):
    async with listening(tmp_path / "a.sock", FakeWorker()) as address:
        await members.join("a", address)
        await members.join(None, address)
        assert names(fleet) == ["a", "local"]
        await members.leave("a")
        await members.leave("nobody")
        assert names(fleet) == ["local"]
        with pytest.raises(EngineStartError, match="already"):
            await members.join("local", address)


async def test_who_does_not_know_the_secret_does_not_join(fleet, tmp_path):
    async with listening(tmp_path / "a.sock", FakeWorker()) as address:
        with pytest.raises(ChiasmError):
            await Members(fleet, remote_connect("another")).join("a", address)
    assert names(fleet) == []


async def test_a_listed_worker_joins_as_soon_as_it_answers(fleet, members, tmp_path):
    joining = asyncio.create_task(members.keep_listed([(None, f"unix:{tmp_path}/late.sock")]))
    await asyncio.sleep(0)
    async with listening(tmp_path / "late.sock", FakeWorker()):
        await asyncio.wait_for(joining, DEADLINE_S)
    assert names(fleet) == ["local"]


async def test_several_workers_behind_one_name_come_and_go_together(fleet):
    async def connect(name, address):
        return [(name, FakeWorker()), (f"{name}.1", FakeWorker())]

    members = Members(fleet, connect)
    await members.join("a", "unix:x")
    assert names(fleet) == ["a", "a.1"]
    with pytest.raises(EngineStartError, match="already"):
        await members.join("a", "unix:x")
    assert names(fleet) == ["a", "a.1"]
    await members.leave("a")
    assert names(fleet) == []


async def test_who_registers_joins_and_who_is_gone_leaves(fleet, members, tmp_path):
    watching = asyncio.create_task(members.keep_registered(tmp_path))
    async with listening(tmp_path / "one.sock", FakeWorker()):
        await until(lambda: names(fleet) == ["one"])
        async with listening(tmp_path / "two.sock", FakeWorker()):
            await until(lambda: names(fleet) == ["one", "two"])
        (tmp_path / "two.sock").unlink(missing_ok=True)
        await until(lambda: names(fleet) == ["one"])
    watching.cancel()
    await asyncio.wait([watching])


async def test_who_was_killed_leaves_although_its_socket_stays_and_who_only_is_silent_stays(
    fleet, tmp_path, monkeypatch
):
    monkeypatch.setattr("chiasm.launch.members._RETRY_INTERVAL_S", 0.01)
    dead = set()

    async def connect(name, address):
        if name in dead:
            raise EngineDeadError("Nobody answers")
        return [(name, FakeWorker())]

    members = Members(fleet, connect)
    with socket.socket(socket.AF_UNIX) as left, socket.socket(socket.AF_UNIX) as silent:
        left.bind(str(tmp_path / "left.sock"))
        silent.bind(str(tmp_path / "silent.sock"))
        silent.listen()
        watching = asyncio.create_task(members.keep_registered(tmp_path))
        await until(lambda: names(fleet) == ["left", "silent"])
        dead.add("left")
        for member in fleet.members:
            fleet.failed(member, "no answer")
        monkeypatch.setattr("chiasm.launch.sick.SICK_S", 0.02)
        await until(lambda: names(fleet) == ["silent"])
        monkeypatch.setattr("chiasm.launch.sick.SICK_S", 30.0)
        dead.clear()
        await until(lambda: names(fleet) == ["silent", "left"])  # as after a new start
        watching.cancel()
        await asyncio.wait([watching])


async def test_what_is_remembered_of_workers_that_never_joined_is_bounded(members, tmp_path):
    for number in range(300):
        assert not await members._joins(None, f"unix:{tmp_path}/{number}.sock")
    assert len(members._refusals) <= 256
