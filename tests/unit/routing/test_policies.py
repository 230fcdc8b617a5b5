"""Each policy's choice for a made-up fleet: a pure function of what it is shown."""

import pytest

from chiasm.errors import EngineDeadError, HandleExpiredError
from chiasm.routing.coverage.prefixes import Prefix
from chiasm.routing.policies.content import Content
from chiasm.routing.policies.least_work import LeastWork
from chiasm.routing.policies.registry import make_policy
from chiasm.routing.policies.round_robin import RoundRobin
from chiasm.routing.view import FleetView, ItemView, Job, WorkerView
from chiasm.settings import RoutingSettings

WHOLE = frozenset({"encode", "prefill", "decode"})
ENCODER = frozenset({"encode"})
POLICIES = ("round_robin", "least_work", "content", "adaptive")


def worker(name, roles=WHOLE, **fields):
    return WorkerView(name=name, roles=roles, **fields)


def fleet(topology, *workers, **fields):
    return FleetView(workers=workers, topology=topology, **fields)


def item(identity, side=448, position=0, **fields):
    return ItemView(identity=identity, positions=(position,), num_pixels=side * side, **fields)


def job(num_items=0, **fields):
    items = tuple(item(f"i{index}", position=index) for index in range(num_items))
    return Job(**({"items": items, "num_chars": 100} | fields))


def shares(plan):
    return {group.worker: len(group.identities) for group in plan.groups}


@pytest.mark.parametrize("name", POLICIES)
def test_settings_name_policies(name):
    assert make_policy(RoutingSettings(policy=name)).name == name


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("num_items", [0, 1, 5])
def test_with_whole_workers_each_encodes_for_itself_in_agg(name, num_items):
    plan = make_policy(RoutingSettings(policy=name)).plan(job(num_items), fleet("agg", worker("a"), worker("b")))
    assert (plan.groups, plan.decode, plan.path) == ((), None, "agg")
    assert set(plan.fates.values()) <= {"local"}


@pytest.mark.parametrize("name", POLICIES)
def test_with_encoders_pictures_are_shared_out_over_them(name):
    view = fleet("e-pd", worker("e0", ENCODER), worker("e1", ENCODER), worker("p"))
    plan = make_policy(RoutingSettings(policy=name)).plan(job(4), view)
    assert shares(plan) == {"e0": 2, "e1": 2}
    assert (plan.prefill, plan.path) == ("p", "e-pd")


@pytest.mark.parametrize("name", POLICIES)
def test_prefill_and_decode_are_chosen_apart_in_e_p_d(name):
    view = fleet(
        "e-p-d",
        worker("e", ENCODER),
        worker("p", frozenset({"prefill"})),
        worker("d0", frozenset({"decode"}), num_decoding=3),
        worker("d1", frozenset({"decode"})),
    )
    plan = make_policy(RoutingSettings(policy=name)).plan(job(1), view)
    assert (plan.prefill, plan.decode, plan.path) == ("p", "d1", "e-p-d")
    assert make_policy(RoutingSettings(policy=name)).plan(job(), view).path == "p-d"


@pytest.mark.parametrize("name", POLICIES)
def test_a_busy_encoder_gets_less(name):
    view = fleet("e-pd", worker("e0", ENCODER, encode_wait_s=10.0), worker("e1", ENCODER), worker("p"))
    assert shares(make_policy(RoutingSettings(policy=name)).plan(job(4), view)) == {"e1": 4}


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("can_encode", [True, False])
def test_without_encoders_prefill_encodes_if_it_may(name, can_encode):
    policy = make_policy(RoutingSettings(policy=name))
    view = fleet("e-pd", worker("p"), has_local_fallback=can_encode)
    if can_encode:
        plan = policy.plan(job(2), view)
        assert (set(plan.fates.values()), plan.path) == ({"local"}, "local-encode")
    else:
        with pytest.raises(HandleExpiredError):
            policy.plan(job(2), view)
    assert policy.plan(job(), view).prefill == "p"


@pytest.mark.parametrize("name", POLICIES)
def test_what_failed_the_request_is_not_asked_again(name):
    policy = make_policy(RoutingSettings(policy=name))
    view = fleet("e-pd", worker("e0", ENCODER), worker("e1", ENCODER), worker("p0"), worker("p1"))
    failed = job(2, failed=frozenset({"p0"}), failed_encoders=frozenset({"e0"}))
    plan = policy.plan(failed, view)
    assert (plan.prefill, shares(plan)) == ("p1", {"e1": 2})
    with pytest.raises(EngineDeadError, match="prefill"):
        policy.plan(job(failed=frozenset({"p0", "p1"})), view)


@pytest.mark.parametrize("name", POLICIES)
def test_what_no_encoder_delivers_is_encoded_where_the_prompt_is_computed(name):
    policy = make_policy(RoutingSettings(policy=name))
    view = fleet("e-pd", worker("e0", ENCODER), worker("p0", frozenset({"prefill", "decode"})), worker("p1"))
    plan = policy.plan(job(1, local_only=frozenset({"i0"})), view)
    assert (plan.prefill, plan.path, plan.fates) == ("p1", "local-encode", {"i0": "local"})


@pytest.mark.parametrize("name", POLICIES)
def test_pictures_on_offer_are_not_encoded(name):
    view = fleet("e-pd", worker("e0", ENCODER), worker("p"))
    plan = make_policy(RoutingSettings(policy=name)).plan(job(items=(item("x", has_handle=True),)), view)
    assert (plan.groups, plan.fates, plan.path) == ((), {"x": "embedding"}, "covered")


def test_round_robin_takes_turns():
    policy, view = RoundRobin(), fleet("agg", worker("a", prefill_wait_s=9.0), worker("b"), worker("c"))
    assert [policy.plan(job(), view).prefill for _ in range(4)] == ["a", "b", "c", "a"]


@pytest.mark.parametrize("load", [{"encode_wait_s": 1.0}, {"prefill_wait_s": 1.0}, {"num_waiting": 2}])
def test_least_work_avoids_work_of_any_kind(load):
    assert LeastWork().plan(job(), fleet("agg", worker("a", **load), worker("b"))).prefill == "b"


def test_content_goes_to_the_owner_of_the_prefix_unless_it_is_overloaded():
    known = job(1, known={"b": Prefix("key", 50, ("i0",))})
    plan = Content().plan(known, fleet("agg", worker("a"), worker("b", prefill_wait_s=0.1)))
    assert (plan.prefill, plan.fates, plan.path) == ("b", {"i0": "prefix"}, "covered")
    plan = Content().plan(known, fleet("agg", worker("a"), worker("b", prefill_wait_s=2.0)))
    assert (plan.prefill, plan.fates) == ("a", {"i0": "local"})


def test_content_goes_to_who_has_the_pictures_when_nobody_has_the_start():
    view = fleet("agg", worker("a"), worker("b"))
    plan = Content().plan(job(items=(item("x", holders=frozenset({"b"})),)), view)
    assert (plan.prefill, plan.fates) == ("b", {"x": "embedding"})
    assert Content().plan(job(1), view).prefill == "a"


@pytest.mark.parametrize("name", POLICIES)
def test_reasons_are_sentences_that_name_the_worker(name):
    for topology in ("agg", "auto"):
        for num_items in (0, 1, 4):
            view = fleet(topology, worker("alpha"), worker("beta"))
            plan = make_policy(RoutingSettings(policy=name)).plan(job(num_items), view)
            assert plan.prefill in plan.reason
            assert plan.reason.endswith(".")


@pytest.mark.parametrize("name", POLICIES)
def test_several_choices_stay_with_a_prefilling_worker_whose_keys_and_values_go_to_one(name):
    policy, ends = make_policy(RoutingSettings(policy=name)), (worker("e", ENCODER), worker("d", frozenset({"decode"})))
    once, often = (worker("p", ENCODER | {"prefill"}, hands_kv_to_one=is_once) for is_once in (True, False))
    for num_choices, decode, path in ((1, "d", "e-p-d"), (2, None, "e-pd")):
        plan = policy.plan(job(2, num_choices=num_choices), fleet("e-p-d", once, *ends))
        assert (plan.prefill, plan.decode, plan.path) == ("p", decode, path)
        assert ("p decodes as well" in plan.reason) == (decode is None)
    assert policy.plan(job(2, num_choices=2), fleet("e-p-d", often, *ends)).decode == "d"
    assert policy.plan(job(num_choices=2), fleet("e-p-d", once, *ends)).path == "pd"
