"""The adaptive policy where workers take cores from each other."""

import asyncio
from itertools import combinations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chiasm.routing.costs.line import Coefficients
from chiasm.routing.coverage.prefixes import Prefix
from chiasm.routing.crowding import CrowdedBoard
from chiasm.routing.policies.adaptive import Adaptive
from chiasm.routing.policies.base import num_delayed, spread
from chiasm.routing.policies.registry import make_policy
from chiasm.routing.view import Job
from chiasm.settings import RoutingSettings
from tests.unit.routing.fleets import outcome_of, serving
from tests.unit.routing.scripted import ALL, ask, picture
from tests.unit.routing.test_adaptive import COSTS
from tests.unit.routing.test_policies import ENCODER, fleet, item, job, shares, worker
from tests.unit.routing.virtual_time import run


def crowd(crowding, *names, costs=COSTS, **loads):
    """Workers of `auto` that share cores; names that begin with e are encoders."""
    roles = {name: {"roles": ENCODER} if name.startswith("e") else {} for name in names}
    workers = [worker(name, crowding=crowding, **roles[name], **loads.get(name, {})) for name in names]
    return fleet("auto", *workers, costs=costs)


@pytest.mark.parametrize("num_items", [1, 2, 4, 8])
@pytest.mark.parametrize("load", [{}, {"a": {"prefill_wait_s": 0.3}}, {"a": {"prefill_wait_s": 0.01}}])
@pytest.mark.parametrize("names", [("a", "b"), ("e", "a"), ("a", "b", "c")])
def test_on_the_same_cores_everyone_encodes_for_itself(num_items, load, names):
    plan = Adaptive().plan(job(num_items), crowd(1.0, *names, **load))
    assert (plan.groups, set(plan.fates.values())) == ((), {"local"})


def test_on_cores_of_their_own_pictures_are_shared_out():
    view = fleet("auto", worker("a"), worker("b"), costs=COSTS)
    assert shares(Adaptive().plan(job(4), view)) == {"a": 2, "b": 2}
    assert Adaptive().plan(job(4), crowd(0.0, "a", "b")) == Adaptive().plan(job(4), view)


def test_an_encoder_takes_pictures_from_a_busy_worker_unless_it_takes_its_cores():
    busy = {"a": {"prefill_wait_s": 0.3}}
    assert shares(Adaptive().plan(job(1), crowd(0.0, "e", "a", **busy))) == {"e": 1}
    assert Adaptive().plan(job(1), crowd(1.0, "e", "a", **busy)).groups == ()


def test_workers_that_share_some_cores_share_out_what_gains_a_tenth():
    assert shares(Adaptive().plan(job(4), crowd(0.2, "a", "b"))) == {"a": 2, "b": 2}
    assert Adaptive().plan(job(4), crowd(0.85, "a", "b")).groups == ()
    reason = Adaptive().plan(job(4), crowd(0.85, "a", "b")).reason
    assert "a encodes 2, b encodes 2" in reason, "it was looked at"


def test_a_worker_with_cores_of_its_own_is_asked_by_one_that_shares():
    others = [worker(name, crowding=1.0) for name in ("a", "b")]
    apart = worker("c", ENCODER)
    plan = Adaptive().plan(job(1), fleet("auto", *(busy(one) for one in others), apart, costs=COSTS))
    assert shares(plan) == {"c": 1}


def busy(one):
    return msgspec.structs.replace(one, prefill_wait_s=0.05)


def test_that_an_encoder_was_found_quicker_counts_for_nothing_on_the_same_cores():
    """What a worker takes for pictures among prompts, and an encoder without company, is learned as different."""
    learned = {"e": Coefficients(0.0, 0.01 / 448**2), "a": Coefficients(0.0, 0.05 / 448**2)}
    costs = msgspec.structs.replace(COSTS, encode=learned)
    assert shares(Adaptive().plan(job(2), crowd(0.0, "e", "a", costs=costs))) == {"e": 2}
    assert Adaptive().plan(job(2), crowd(1.0, "e", "a", costs=costs)).groups == ()


def test_prompts_computed_beside_encoding_are_no_gain_on_the_same_cores():
    starts = {
        f"i{index}": Prefix("k", 2000 * (index + 1), tuple(f"i{one}" for one in range(index + 1))) for index in range(4)
    }
    late = job(4, num_chars=8000, starts=starts, may_overlap=frozenset("a"))
    assert Adaptive().plan(late, crowd(0.0, "e", "a")).groups
    assert Adaptive().plan(late, crowd(1.0, "e", "a")).groups == ()


def test_the_reason_says_what_cores_of_their_own_would_have_changed():
    reason = Adaptive().plan(job(4), crowd(1.0, "a", "b")).reason
    assert reason.startswith("a encodes 4 itself: first token predicted after ")
    assert "because workers take cores from each other: else a encodes 2, b encodes 2, a prefills" in reason
    for view, number in ((crowd(0.0, "a", "b"), 4), (crowd(0.1, "a", "b"), 4), (crowd(1.0, "a", "b"), 1)):
        assert "cores" not in Adaptive().plan(job(number), view).reason, "they changed nothing"


def test_generations_at_other_workers_are_delayed_by_as_much_as_cores_are_shared():
    loads = {"a": {"num_decoding": 8}, "b": {"num_decoding": 2}}
    for crowding in (0.0, 0.5, 1.0):
        board = CrowdedBoard(Job(), crowd(crowding, "e", "a", "b", **loads))
        found = {name: board.num_delayed(name) for name in ("e", "a", "b")}
        assert found == {"e": 10 * crowding, "a": 8 + 2 * crowding, "b": 2 + 8 * crowding}


def test_an_encoder_that_delays_others_generations_is_spared_as_one_with_its_own_is():
    costs = msgspec.structs.replace(COSTS, hop_s=0.0)
    load = {"a": {"prefill_wait_s": 0.02}, "b": {"prefill_wait_s": 9.0, "num_decoding": 60}}
    assert shares(Adaptive().plan(job(4), crowd(0.0, "e", "a", "b", costs=costs, **load))) == {"e": 2, "a": 2}
    spared = Adaptive().plan(job(4), fleet("auto", *_half_crowded(load), costs=costs))
    assert spared.groups == ()


def _half_crowded(load):
    """The encoder shares with `b` alone."""
    return worker("e", ENCODER, crowding=1.0), worker("a", **load["a"]), worker("b", crowding=1.0, **load["b"])


def test_a_request_gets_no_larger_share_of_cores_by_being_at_several_workers():
    board = CrowdedBoard(Job(), crowd(1.0, "a", "b", "c"))
    work_s = {"a": 9.0, "b": 1.0, "c": 1.0}
    assert board.delay_s("b", work_s) == 2.0
    assert board.delay_s("b", work_s, {"b", "c"}) == 3.0
    assert board.delay_s("b", {"a": 9.0, "b": 2.0, "c": 0.0}) == 2.0, "so that it is through after 4 s either way"


@given(st.lists(st.floats(0, 10), min_size=1, max_size=6), st.floats(0.01, 1))
def test_work_ends_when_equal_shares_of_the_cores_would_have_ended_it(seconds, crowding):
    names = [f"w{index}" for index in range(len(seconds))]
    board = CrowdedBoard(Job(), fleet("auto", *(worker(name, crowding=crowding) for name in names)))
    work_s = dict(zip(names, seconds, strict=True))
    now_s = done_s = 0.0
    for number, name in enumerate(sorted(names, key=work_s.__getitem__)):
        num_busy = len(names) - number
        now_s += (work_s[name] - done_s) * (1 + crowding * (num_busy - 1))
        done_s = work_s[name]
        assert work_s[name] + board.delay_s(name, work_s) == pytest.approx(now_s)


def test_texts_that_come_wait_for_encoders_on_the_same_cores():
    added_s = {"e": 0.4, "a": 0.1}
    waits = [CrowdedBoard(Job(), crowd(one, "e", "a")).later_texts_s(added_s) for one in (0.0, 0.5, 1.0)]
    assert waits == [pytest.approx(0.1**2 / 2), pytest.approx(0.15**2 / 2), pytest.approx(0.2**2 / 2)]


@pytest.mark.parametrize(("crowding", "paths"), [(None, {"e-pd"}), (0.0, {"e-pd"}), (1.0, {"agg"})])
def test_requests_go_as_the_setting_says(crowding, paths):
    async def main():
        async with serving("auto", {"w0": ALL, "w1": ALL}, policy="adaptive", crowding=crowding) as a_fleet:
            found = set()
            for number in range(3):
                shown = [picture(f"{number}-{one}") for one in range(4)]
                outcome = await outcome_of(a_fleet, ask("which", *shown, request_id=f"r{number}"))
                found.add(outcome.route.path)
            assert found == paths

    run(main())


def test_who_started_workers_says_that_they_share_cores_until_they_leave():
    async def main():
        async with serving("auto", policy="adaptive") as a_fleet:
            for name in ("w0", "w1"):
                a_fleet.router.fleet.share_cores(name, 1.0)
            outcome = await outcome_of(a_fleet, ask("which", *(picture(f"{one}") for one in range(4))))
            assert outcome.route.path == "agg"
            assert "take cores from each other" in outcome.route.reason
            await a_fleet.router.fleet.remove("w1").aclose()
            a_fleet.add("w1")
            shown = [picture(f"again {one}") for one in range(4)]
            assert (await outcome_of(a_fleet, ask("which", *shown, request_id="r2"))).route.path == "e-pd"

    run(main())


def test_requests_that_come_at_once_stay_where_their_prompts_are_computed():
    async def main():
        workers = {"e0": ("encode",), "w0": ALL}
        async with serving("auto", workers, policy="adaptive", crowding=1.0) as a_fleet:
            for turn in range(8):
                asked = [ask("which", picture(f"{turn}-{one}"), request_id=f"r{turn}-{one}") for one in range(4)]
                outcomes = await asyncio.gather(*(outcome_of(a_fleet, one) for one in asked))
                assert {one.route.path for one in outcomes} == {"agg"}
            assert a_fleet["e0"].encoded == []

    run(main())


LEARNED = {"e0": Coefficients(0.0, 0.01 / 448**2), "e1": Coefficients(0.0, 0.05 / 448**2)}


def encoders(crowding, **second):
    apart = worker("e0", ENCODER, crowding=crowding), worker("e1", ENCODER, crowding=crowding, **second)
    costs = msgspec.structs.replace(COSTS, encode=LEARNED)
    return fleet("e-pd", *apart, worker("p", crowding=crowding), costs=costs)


@pytest.mark.parametrize("policy", ["least_work", "adaptive"])
def test_encoders_that_share_cores_get_equal_shares_whatever_was_learned_of_each(policy):
    chosen = make_policy(RoutingSettings(policy=policy))
    assert shares(chosen.plan(job(4), encoders(0.0))) == {"e0": 4}
    assert shares(chosen.plan(job(4), encoders(1.0))) == {"e0": 2, "e1": 2}


def test_who_shares_cores_holds_the_same_generations_up_wherever_they_run():
    costs_alike = msgspec.structs.replace(COSTS, encode={})
    for crowding, wanted in ((0.0, {"e0": 4}), (1.0, {"e0": 2, "e1": 2})):
        view = msgspec.structs.replace(encoders(crowding, num_decoding=20), costs=costs_alike)
        assert {one.worker: len(one.identities) for one in spread(job(4).items, view.workers[:2], view)} == wanted
    assert num_delayed(view.workers[:2], view) == {"e0": 20.0, "e1": 20.0}


def test_a_worker_among_encoders_on_its_cores_is_not_taken_for_slower():
    """What was learned of it among prompts is not looked at: the two share evenly, which gains with little crowding."""
    learned = {"a": Coefficients(0.0, 0.2 / 448**2), "b": Coefficients(0.0, 0.01 / 448**2)}
    costs = msgspec.structs.replace(COSTS, encode=learned)
    assert shares(Adaptive().plan(job(4), crowd(0.2, "a", "b", costs=costs))) == {"a": 2, "b": 2}


@given(
    crowding=st.floats(0.0, 1.0),
    works_s=st.tuples(st.floats(0.0, 0.3), st.floats(0.0, 0.3)),
    sides=st.lists(st.integers(56, 896), min_size=1, max_size=7),
)
def test_of_all_ways_to_share_pictures_out_on_the_same_cores_the_even_one_is_taken(crowding, works_s, sides):
    """Two workers are through after the larger amount + crowding * the smaller; so the even share is the best, to
    half of a picture.
    """
    pair = [worker(name, ENCODER, crowding=crowding, encode_wait_s=s) for name, s in zip("ab", works_s, strict=True)]
    view = fleet("e-pd", *pair, costs=COSTS)
    items = tuple(item(f"i{index}", side, index) for index, side in enumerate(sides))
    each_s = {one.identity: COSTS.encode_any.at(one.num_pixels) for one in items}

    def through_s(at_first):
        first_s = works_s[0] + sum(each_s[identity] for identity in at_first)
        second_s = works_s[1] + sum(each_s[identity] for identity in each_s.keys() - at_first)
        return max(first_s, second_s) + crowding * min(first_s, second_s)

    taken = {identity for group in spread(items, pair, view) if group.worker == "a" for identity in group.identities}
    subsets = (set(some) for size in range(len(items) + 1) for some in combinations(each_s, size))
    assert through_s(taken) <= min(map(through_s, subsets)) + max(each_s.values()) / 2 + 1e-9
