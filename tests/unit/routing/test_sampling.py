from types import SimpleNamespace

import pytest

from chiasm.routing.coverage.prefixes import Prefix
from chiasm.routing.sampling import Sampling
from chiasm.routing.view import ItemView, Job


class FakeFleet:
    """Members by name, as `Sampling` looks at them."""

    def __init__(self, **kinds):
        self.members = tuple(
            SimpleNamespace(name=f"{role}-{n}", state="ready", info=SimpleNamespace(roles=(role,)))
            for role, count in kinds.items()
            for n in range(count)
        )

    def find(self, name):
        return next((one for one in self.members if one.name == name), None)


NOTHING = Job()


def names(fleet, sampling, job=NOTHING):
    return [one.name for one in sampling.members(fleet, job)]


def test_all_of_a_small_fleet_are_looked_at():
    fleet = FakeFleet(prefill=5)
    assert names(fleet, Sampling(5)) == [one.name for one in fleet.members]


def test_of_a_large_fleet_so_many_of_each_kind():
    found = names(FakeFleet(encode=50, prefill=100, decode=2), Sampling(4))
    kinds = [name.partition("-")[0] for name in found]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {"encode": 4, "prefill": 4, "decode": 2}


def test_those_that_are_down_are_not_drawn():
    fleet = FakeFleet(prefill=40)
    for member in fleet.members[:20]:
        member.state = "down"
    sampling = Sampling(4)
    drawn = {name for _ in range(50) for name in names(fleet, sampling)}
    assert drawn == {one.name for one in fleet.members[20:]}


def test_when_all_are_down_whoever_plans_is_told_by_all():
    fleet = FakeFleet(prefill=10)
    for member in fleet.members:
        member.state = "down"
    assert len(names(fleet, Sampling(4))) == 10


def test_workers_that_have_something_of_a_request_are_always_looked_at():
    fleet = FakeFleet(prefill=200)
    job = Job(
        items=(ItemView(identity="a", positions=(0,), num_pixels=1, holders=frozenset({"prefill-150"})),),
        known={"prefill-199": Prefix("k", 10, ()), "gone": Prefix("k", 10, ())},
    )
    found = names(fleet, Sampling(4), job)
    assert {"prefill-150", "prefill-199"} <= set(found)
    assert "gone" not in found
    assert len(found) <= 6


def test_every_member_gets_its_turn_also_those_that_join_later():
    fleet = FakeFleet(prefill=30)
    sampling = Sampling(4)
    names(fleet, sampling)
    fleet.members = (
        *fleet.members,
        SimpleNamespace(name="new", state="ready", info=SimpleNamespace(roles=("prefill",))),
    )
    drawn = [name for _ in range(500) for name in names(fleet, sampling)]
    assert set(drawn) == {one.name for one in fleet.members}
    assert drawn.count("new") == pytest.approx(500 * 4 / 31, rel=0.5)
