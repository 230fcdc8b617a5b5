"""A gateway's fleet follows a roster: join, drain, leave, and join again elsewhere."""

import asyncio
from types import SimpleNamespace

import pytest

from chiasm.errors import EngineDeadError
from chiasm.launch.cluster import roster as rosters
from chiasm.launch.cluster.roster import RosterKeeper
from chiasm.launch.processes.messages import Listed, Roster


class Journal:
    """Stands for `Members` and `Fleet`."""

    def __init__(self):
        self.there, self.drained, self.refused, self.log = {}, set(), set(), []
        self.members = {}

    async def join(self, name, address):
        self.log.append(("join", name, address))
        if address in self.refused:
            raise EngineDeadError("nobody listens")
        self.there[name] = address
        self.members[name] = SimpleNamespace(is_shared=False)

    async def leave(self, name):
        self.log.append(("leave", name))
        self.there.pop(name, None)
        self.members.pop(name, None)

    def behind(self, name):
        return [name]

    def find(self, name):
        return self.members.get(name)

    def drain(self, name):
        self.drained.add(name)


@pytest.fixture
async def kept(monkeypatch):
    monkeypatch.setattr(rosters, "_RETRY_INTERVAL_S", 0.01)
    keeper, journal = RosterKeeper(), Journal()
    task = asyncio.create_task(keeper.keep(journal, journal))
    yield keeper, journal
    task.cancel()
    await asyncio.wait([task])


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the journal sets no event
            await asyncio.sleep(0.001)


async def test_workers_join_and_leave_as_the_roster_says(kept):
    keeper, journal = kept
    keeper.put(Roster(1, {"e": Listed("http://a:1"), "p": Listed("http://a:2")}, 3))
    await until(lambda: journal.there == {"e": "http://a:1", "p": "http://a:2"})
    assert keeper.encoders_wanted == 3
    await until(lambda: [one.is_shared for one in journal.members.values()] == [True, True])
    keeper.put(Roster(2, {"p": Listed("http://a:2")}))
    await until(lambda: journal.there == {"p": "http://a:2"})


async def test_a_worker_that_came_back_elsewhere_leaves_before_it_joins(kept):
    keeper, journal = kept
    keeper.put(Roster(1, {"e": Listed("http://a:1")}))
    await until(lambda: "e" in journal.there)
    keeper.put(Roster(2, {"e": Listed("http://b:9")}))
    await until(lambda: journal.there.get("e") == "http://b:9")
    assert journal.log == [("join", "e", "http://a:1"), ("leave", "e"), ("join", "e", "http://b:9")]


async def test_one_that_leaves_is_drained_and_stays_until_it_is_off_the_roster(kept):
    keeper, journal = kept
    keeper.put(Roster(1, {"e": Listed("http://a:1")}))
    await until(lambda: "e" in journal.there)
    keeper.put(Roster(2, {"e": Listed("http://a:1", is_leaving=True)}))
    await until(lambda: "e" in journal.drained)
    assert "e" in journal.there


async def test_an_older_roster_that_comes_late_changes_nothing(kept):
    keeper, journal = kept
    keeper.put(Roster(5, {"e": Listed("http://a:1")}))
    keeper.put(Roster(4, {}))
    await until(lambda: "e" in journal.there)
    assert keeper._roster.number == 5


async def test_who_does_not_answer_is_asked_again(kept):
    keeper, journal = kept
    journal.refused.add("http://a:1")
    keeper.put(Roster(1, {"e": Listed("http://a:1")}))
    await until(lambda: len(journal.log) > 3)
    journal.refused.clear()
    await until(lambda: "e" in journal.there)
