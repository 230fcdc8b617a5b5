"""The adaptive policy: what it weighs, on made-up fleets and with workers that keep their promises."""

import asyncio
from contextlib import aclosing

import msgspec
import pytest

from chiasm.protocol.generation import RequestFinished, SamplingParams
from chiasm.routing.costs.line import Coefficients
from chiasm.routing.costs.model import StageCosts
from chiasm.routing.coverage.prefixes import Prefix
from chiasm.routing.overlap import MAX_PARTS
from chiasm.routing.plan import EncodeGroup
from chiasm.routing.policies.adaptive import Adaptive
from chiasm.routing.prediction import Board, Outlook
from tests.unit.routing.fleets import outcome_of, serving
from tests.unit.routing.scripted import ALL, ScriptedWorker, ask, expected_answer, picture
from tests.unit.routing.test_policies import ENCODER, fleet, item, job, shares, worker
from tests.unit.routing.virtual_time import run

COSTS = StageCosts(
    encode_any=Coefficients(0.002, 0.04 / 448**2),
    prefill_any=Coefficients(0.004, 0.02 / 256),
    step=Coefficients(0.004, 0.0002),
    hop_s=0.003,
)


def plan_of(a_job, *workers, topology="auto"):
    return Adaptive().plan(a_job, fleet(topology, *workers, costs=COSTS))


@pytest.mark.parametrize(("num_items", "wanted"), [(2, [1, 1]), (4, [2, 2]), (7, [3, 4])])
def test_several_pictures_are_encoded_side_by_side_on_an_idle_fleet(num_items, wanted):
    plan = plan_of(job(num_items), worker("a"), worker("b"))
    assert sorted(shares(plan).values()) == wanted
    assert plan.path == "e-pd"


def test_one_picture_stays_where_its_prompt_is_computed():
    plan = plan_of(job(1), worker("a"), worker("b"))
    assert (plan.groups, plan.path) == ((), "agg")


@pytest.mark.parametrize("num_items", [1, 2, 3])
def test_tiny_pictures_stay_local(num_items):
    tiny = tuple(item(f"t{index}", side=32, position=index) for index in range(num_items))
    assert plan_of(job(items=tiny), worker("a"), worker("b")).groups == ()


def test_a_busy_neighbour_is_not_asked():
    plan = plan_of(job(2), worker("a"), worker("b", encode_wait_s=0.5))
    assert (plan.prefill, plan.groups) == ("a", ())


def test_a_slow_encoder_gets_a_smaller_share_than_a_quick_one():
    costs = StageCosts(
        encode={"quick": Coefficients(0.0, 0.02 / 448**2), "slow": Coefficients(0.0, 0.06 / 448**2)},
        prefill_any=Coefficients(0.01, 0.0),
    )
    plan = Adaptive().plan(job(8), fleet("auto", worker("slow"), worker("quick"), costs=costs))
    assert shares(plan) == {"slow": 2, "quick": 6}


@pytest.mark.parametrize("topology", ["agg", "auto"])
def test_the_prefix_owner_is_chosen_unless_it_is_overloaded(topology):
    known = job(2, num_chars=400, known={"b": Prefix("key", 300, ("i0", "i1"))})
    plan = plan_of(known, worker("a"), worker("b", prefill_wait_s=0.03), topology=topology)
    assert (plan.prefill, plan.path, set(plan.fates.values())) == ("b", "covered", {"prefix"})
    assert plan_of(known, worker("a"), worker("b", prefill_wait_s=3.0), topology=topology).prefill == "a"


def test_of_equals_the_owner_of_any_start_is_taken():
    known = job(num_chars=400, known={"b": Prefix("key", 20, ())})
    assert plan_of(known, worker("a"), worker("b")).prefill == "b"


def test_a_start_that_all_have_draws_nobody_to_one_of_them():
    shared = {name: Prefix("key", 300, ()) for name in "ab"}
    assert plan_of(job(num_chars=400, known=shared), worker("a", prefill_wait_s=0.01), worker("b")).prefill == "b"
    longer = {"a": Prefix("longer", 390, ()), "b": Prefix("key", 300, ())}
    assert plan_of(job(num_chars=400, known=longer), worker("a"), worker("b")).prefill == "a"


def test_text_goes_past_media():
    for load in ({"encode_wait_s": 0.2}, {"prefill_wait_s": 0.2}):
        assert plan_of(job(), worker("a", **load), worker("b")).prefill == "b"


def test_where_texts_come_often_one_worker_is_kept_free_of_media():
    view = fleet("auto", worker("a"), worker("b"), costs=COSTS)
    assert shares(Adaptive().plan(job(4), view)) == {"a": 2, "b": 2}
    busy = msgspec.structs.replace(view, text_per_s=12.0)
    assert Adaptive().plan(job(4), busy).groups == ()
    rare = msgspec.structs.replace(view, text_per_s=0.2)
    assert Adaptive().plan(job(4), rare).groups


def test_running_generations_count_against_a_worker():
    assert plan_of(job(), worker("a", num_decoding=6), worker("b", num_decoding=1)).prefill == "b"
    plan = plan_of(job(4), worker("a", num_decoding=0), worker("b", num_decoding=12))
    assert plan.prefill == "a"
    assert shares(plan).get("b", 0) < 2


@pytest.mark.parametrize(("num_decoding", "names"), [(0, {"a", "b"}), (1, {"a", "b"}), (4, set()), (20, set())])
def test_pictures_are_not_shared_out_where_answers_run_that_would_wait_for_longer_than_is_gained(num_decoding, names):
    plan = plan_of(job(4), worker("a"), worker("b", num_decoding=num_decoding))
    assert (plan.prefill, set(shares(plan))) == ("a", names)
    is_said = (
        "for the sake of others: else a encodes 3, b encodes 1, a prefills (first token after 217 ms)" in plan.reason
    )
    assert is_said == (num_decoding == 4)


@pytest.mark.parametrize(("num_running", "path"), [(0, "e-pd"), (1, "e-pd"), (8, "agg")])
def test_pictures_stay_together_while_answers_run_at_the_neighbour(num_running, path):
    async def main():
        async with serving("auto", policy="adaptive") as a_fleet:
            a_fleet.member("w0").mark_leaving()
            long = {"sampling": SamplingParams(temperature=0.0, max_tokens=200)}
            running = [ask("word " * 200, request_id=f"long {one}", **long) for one in range(num_running)]
            tasks = [asyncio.create_task(outcome_of(a_fleet, one)) for one in running]
            await asyncio.sleep(0.4)
            assert a_fleet.member("w1").num_decoding == num_running
            a_fleet.member("w0").mark_ready()
            outcome = await outcome_of(a_fleet, ask("which", *(picture(f"p{one}") for one in range(4))))
            assert outcome.route.path == path
            assert outcome.attempts[-1][1] == "w0"
            await asyncio.gather(*tasks)
            again = ask("which", *(picture(f"q{one}") for one in range(4)), request_id="again")
            assert (await outcome_of(a_fleet, again)).route.path == "e-pd"

    run(main())


@pytest.mark.parametrize(("num_prefilling", "is_split"), [(0, True), (1, True), (30, False)])
def test_calls_for_embeddings_count_for_all_who_wait_at_either_end(num_prefilling, is_split):
    waiting = {"num_prefilling": num_prefilling, "prefill_wait_s": 0.02}
    for ends in ((worker("a", **waiting), worker("b", **waiting)), (worker("a"), worker("b", **waiting))):
        assert bool(plan_of(job(4), *ends).groups) == is_split


def test_calls_in_parts_count_one_by_one():
    waiting = worker("b", num_prefilling=5)
    starts = {f"i{index}": Prefix("key", 4000, ()) for index in range(8)}
    at_once, ahead = job(8, starts=starts), job(8, starts=starts, may_overlap=frozenset("a"))
    strains_s = []
    for a_job in (at_once, ahead):
        view = fleet("auto", worker("a"), waiting, costs=COSTS)
        outlook = Outlook(a_job, view, view.workers[0], Board(a_job, view))
        strains_s.append(outlook.forecast((EncodeGroup("b", tuple(starts)),)).strain_s)
    assert strains_s[1] == pytest.approx(MAX_PARTS * strains_s[0])
    assert strains_s[0] > 0


def test_a_small_gain_is_no_reason_to_leave_the_usual_way():
    costs = StageCosts(encode_any=Coefficients(0.02, 0.0), prefill_any=Coefficients(0.2, 0.0), hop_s=0.0)
    plan = Adaptive().plan(job(2), fleet("auto", worker("a"), worker("b"), costs=costs))
    assert plan.groups == ()
    costs = StageCosts(encode_any=Coefficients(0.1, 0.0), prefill_any=Coefficients(0.2, 0.0), hop_s=0.0)
    assert Adaptive().plan(job(2), fleet("auto", worker("a"), worker("b"), costs=costs)).groups


def test_a_worker_that_encodes_only_for_itself_is_asked_for_no_embeddings():
    itself = {"encodes_for_others": False}
    encoder, idle, busy = worker("e", roles=ENCODER), worker("a", **itself), worker("a", prefill_wait_s=0.5, **itself)
    assert plan_of(job(4), encoder, idle).groups == (), "sharing out would mean asking it, too"
    assert shares(plan_of(job(4), encoder, busy)) == {"e": 4}
    assert plan_of(job(4), busy, worker("b", prefill_wait_s=0.5, **itself)).groups == ()


def test_a_slow_hand_over_keeps_pictures_where_they_are_needed():
    view = fleet("auto", worker("a"), worker("b"), costs=msgspec.structs.replace(COSTS, take_s=0.2))
    assert Adaptive().plan(job(4), view).groups == ()


def test_the_same_question_gets_the_same_answer():
    view = fleet("auto", *(worker(f"w{i}", encode_wait_s=i * 0.01) for i in range(20)), costs=COSTS)
    assert len({repr(Adaptive().plan(job(5), view)) for _ in range(3)}) == 1


def test_fixed_topologies_are_restrictions_of_the_same_choice():
    encoders = [worker("e0", ENCODER), worker("e1", ENCODER)]
    plan = plan_of(job(2), *encoders, worker("p"), topology="e-pd")
    assert (shares(plan), plan.prefill) == ({"e0": 1, "e1": 1}, "p")
    assert plan_of(job(4), worker("a"), worker("b"), topology="agg").groups == ()


def test_auto_uses_encoders_beside_whole_workers():
    plan = plan_of(job(6), worker("e0", ENCODER), worker("a"), worker("b", encode_wait_s=9.0))
    assert shares(plan) == {"a": 3, "e0": 3}


def test_the_reason_has_the_numbers_of_the_way_taken_and_of_the_next_best():
    reason = plan_of(job(4), worker("a"), worker("b")).reason
    assert reason.startswith("a encodes 2, b encodes 2, a prefills: first token predicted after ")
    assert "; a encodes 4 itself: after " in reason
    assert reason.count(" ms") == 4
    assert "; text at b: after " in plan_of(job(), worker("a"), worker("b")).reason
    assert "no other way" in plan_of(job(), worker("a")).reason


async def first_token_s(a_fleet, request):
    start_s = asyncio.get_running_loop().time()
    async for event in a_fleet.router.generate(request):
        if type(event).__name__ == "TokenEvent":
            return asyncio.get_running_loop().time() - start_s
    raise AssertionError("no token")


@pytest.mark.parametrize("num_pictures", [2, 4, 8])
def test_auto_beats_agg_where_it_says_so(num_pictures):
    async def main():
        seconds = {}
        for topology in ("agg", "auto"):
            async with serving(topology, policy="adaptive") as a_fleet:
                names = [f"p{index}" for index in range(num_pictures)]
                request = ask("which", *(picture(name) for name in names))
                seconds[topology] = await first_token_s(a_fleet, request)
                await asyncio.sleep(0.001)
        assert seconds["auto"] < 0.75 * seconds["agg"]

    run(main())


def test_costs_are_learned_from_what_workers_report():
    async def main():
        async with serving("auto", policy="adaptive") as a_fleet:
            for worker_ in a_fleet.workers.values():
                worker_.encode_s, worker_.prefill_s = 0.4, 0.1
            for index in range(30):
                await outcome_of(a_fleet, ask("which", picture(f"p{index}"), request_id=f"r{index}"))
            costs = a_fleet.router._parts.costs.costs()
            assert costs.encode_s("w0", 448**2) == pytest.approx(0.4, rel=0.1)
            assert costs.prefill_s("w0", 14) == pytest.approx(0.1, rel=0.1)

    run(main())


class UndividedWorker(ScriptedWorker):
    """Says of pictures that it encodes on its way what vLLM says: nothing apart."""

    counts_encoding_as_prefill = True

    async def generate(self, request):
        async with aclosing(super().generate(request)) as events:
            async for event in events:
                yield self._undivided(event)

    def _undivided(self, event):
        if not isinstance(event, RequestFinished):
            return event
        spans = [msgspec.structs.replace(one, stage="prefill") if one.stage == "encode" else one for one in event.spans]
        return msgspec.structs.replace(event, spans=tuple(spans))


def test_what_a_worker_does_not_tell_apart_is_learned_from_requests_of_either_kind(monkeypatch):
    monkeypatch.setattr("tests.unit.routing.fleets.ScriptedWorker", UndividedWorker)

    async def main():
        async with serving("auto", {"w0": ALL}, policy="adaptive") as a_fleet:
            a_fleet["w0"].encode_s, a_fleet["w0"].prefill_s = 0.4, 0.1
            for index in range(30):
                pictures = [picture(f"p{index}")] if index % 2 else []
                await outcome_of(a_fleet, ask("which", *pictures, request_id=f"r{index}"))
            costs = a_fleet.router._parts.costs.costs()
            assert costs.encode_s("w0", 448**2) == pytest.approx(0.4, rel=0.15)
            assert costs.prefill_s("w0", 14) == pytest.approx(0.1, rel=0.15)

    run(main())


def test_a_conversation_stays_with_the_worker_that_knows_it():
    async def main():
        async with serving("auto", {f"w{i}": ALL for i in range(4)}, policy="adaptive") as a_fleet:
            places = []
            for index in range(6):
                request = ask(f"question {index}", picture("a"), request_id=f"r{index}")
                outcome = await outcome_of(a_fleet, request)
                assert outcome.words == expected_answer(request)
                places.append(outcome.attempts[-1][1])
            assert len(set(places)) == 1
            assert sum(len(one.encoded) for one in a_fleet.workers.values()) == 1
            assert a_fleet.router.stats().totals["encodes_avoided_prefix"] == 5

    run(main())


def test_a_mixed_load_is_answered_in_full_and_spread():
    async def main():
        async with serving("auto", policy="adaptive") as a_fleet:
            asked = [
                ask(
                    f"question {index}",
                    *(picture(f"{index}-{one}") for one in range(index % 4)),
                    request_id=f"r{index}",
                )
                for index in range(40)
            ]
            outcomes = await asyncio.gather(*(outcome_of(a_fleet, one) for one in asked))
            assert [one.words for one in outcomes] == [expected_answer(one) for one in asked]
            served = [len(one.requests) for one in a_fleet.workers.values()]
            assert min(served) >= 12

    run(main())


def test_of_an_encoder_of_which_nothing_is_known_one_call_at_a_time_is_tried():
    busy, encoder = worker("a", prefill_wait_s=0.1), worker("e", ENCODER)
    assert shares(plan_of(job(1), encoder, busy)) == {"e": 1}
    tried = worker("e", ENCODER, encode_wait_s=0.01)
    assert plan_of(job(1), tried, busy).groups == ()
    known = msgspec.structs.replace(COSTS, encode={"e": COSTS.encode_any})
    view = fleet("auto", tried, busy, costs=known)
    assert shares(Adaptive().plan(job(1), view)) == {"e": 1}
    assert shares(plan_of(job(1), tried, busy, topology="e-pd")) == {"e": 1}, "there is no other way"


def test_of_requests_that_come_at_once_one_tries_an_encoder_of_which_nothing_is_known():
    async def main():
        async with serving("auto", {"e0": ("encode",), "w0": ALL}, policy="adaptive") as a_fleet:
            asked = [ask("which", picture(f"p{index}"), request_id=f"r{index}") for index in range(4)]
            outcomes = await asyncio.gather(*(outcome_of(a_fleet, one) for one in asked))
            assert sorted(one.route.path for one in outcomes) == ["agg", "agg", "agg", "e-pd"]

    run(main())
