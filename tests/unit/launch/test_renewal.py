"""Replacing processes: what is refused, and in which order things happen."""

import asyncio

import pytest

from chiasm.errors import EngineStartError, InvalidRequestError, OverloadedError
from chiasm.launch import renewal
from chiasm.launch.renewal import Renewals


class Member:
    def __init__(self, name, roles):
        self.name, self.state, self.num_open = name, "ready", 0
        self.info = type("Info", (), {"roles": roles})


class Fleet:
    def __init__(self, **roles):
        self.members = {name: Member(name, parts) for name, parts in roles.items()}

    def find(self, name):
        return self.members.get(name)

    def with_role(self, role):
        return [one for one in self.members.values() if one.state == "ready" and role in one.info.roles]

    def drain(self, name):
        self.members[name].state = "draining"


class Members:
    def behind(self, name):
        return {"server": ["server.0", "server.1"]}.get(name, [name])


class Supervisor:
    """Ends a process only when all that it stands for is idle; its successor is there at once, if it comes at all."""

    def __init__(self, fleet, *names, comes_back=True, stays=True):
        self.pids = {name: number for number, name in enumerate(names, 1)}
        self._fleet, self._comes_back, self._stays = fleet, comes_back, stays

    async def renew(self, name):
        for one in Members().behind(name):
            old = self._fleet.members.pop(one)
            assert old.state == "draining"
            assert not old.num_open
            if self._comes_back:
                self._fleet.members[one] = Member(one, old.info.roles)
        self.pids[name] += 100
        if not self._stays:
            del self.pids[name]


def renewals(fleet, *names, **options):
    supervisor = Supervisor(fleet, *names, **options)
    return Renewals(fleet, Members(), supervisor, drain_timeout_s=5, start_timeout_s=0.05)


async def test_a_worker_ends_only_after_what_it_has():
    fleet = Fleet(one=("prefill", "decode"), two=("prefill", "decode"))
    fleet.members["one"].num_open = 1
    renewed = asyncio.create_task(renewals(fleet, "one", "two").renew("one", alone=False))
    await asyncio.sleep(0.1)
    assert not renewed.done()
    fleet.members["one"].num_open = 0
    assert (await renewed).pid == 101


async def test_all_members_of_one_process_are_drained_and_come_back():
    roles = ("prefill", "decode")
    fleet = Fleet(**{"server.0": roles, "server.1": roles, "other": roles})
    assert (await renewals(fleet, "server", "other").renew("server", alone=False)).state == "ready"


async def test_the_last_of_a_stage_stays_unless_that_is_meant():
    fleet = Fleet(encoder=("encode",), one=("prefill", "decode"), two=("prefill", "decode"))
    fleet.members["two"].state = "down"
    for name in ("encoder", "one"):
        with pytest.raises(InvalidRequestError, match="No other worker"):
            await renewals(fleet, "encoder", "one", "two").renew(name, alone=False)
        assert fleet.members[name].state == "ready"
    assert await renewals(fleet, "encoder", "one", "two").renew("encoder", alone=True)


async def test_one_at_a_time_and_only_processes_of_ours():
    fleet = Fleet(one=("decode",), two=("decode",), foreign=("decode",))
    fleet.members["one"].num_open = 1
    two = renewals(fleet, "one", "two")
    first = asyncio.create_task(two.renew("one", alone=False))
    await asyncio.sleep(0.01)
    with pytest.raises(OverloadedError, match="being replaced"):
        await two.renew("two", alone=False)
    with pytest.raises(InvalidRequestError, match="no process"):
        await two.renew("foreign", alone=False)
    fleet.members["one"].num_open = 0
    await first


async def test_a_successor_that_does_not_come_is_an_error(monkeypatch):
    monkeypatch.setattr(renewal, "_JOIN_TIMEOUT_S", 0.0)
    fleet = Fleet(one=("decode",), two=("decode",))
    with pytest.raises(EngineStartError, match="not back"):
        await renewals(fleet, "one", "two", comes_back=False).renew("one", alone=False)


async def test_a_successor_that_ends_as_soon_as_it_has_answered_is_an_error_too():
    fleet = Fleet(one=("decode",), two=("decode",))
    with pytest.raises(EngineStartError, match="ended at once"):
        await renewals(fleet, "one", "two", stays=False).renew("one", alone=False)
