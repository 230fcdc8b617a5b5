import math

import msgspec
import pytest

from chiasm.advisor.advice import advise
from chiasm.advisor.candidates import candidates
from chiasm.advisor.evaluate import ranked
from chiasm.advisor.flips import changes, flips
from chiasm.advisor.page import markdown_of
from chiasm.advisor.question import Question, Tier
from chiasm.simulator.calibration import Calibration, Cost, Evidence, Interference, Sharing
from chiasm.simulator.cluster import adaptive
from chiasm.simulator.summary import Objective
from chiasm.simulator.traffic import RequestClass, Traffic

HEAVY_ENCODE = Calibration(
    media=Cost(fixed_s=0.001),
    encode=Cost(fixed_s=0.2),
    prefill=Cost(fixed_s=0.004, per_unit_s=2e-5),
    step=Cost(fixed_s=0.003, per_unit_s=0.0002),
    transfer=Cost(fixed_s=0.001),
    kv_transfer=Cost(fixed_s=0.001),
)
CHEAP_ENCODE = msgspec.structs.replace(HEAVY_ENCODE, encode=Cost(fixed_s=0.001), transfer=Cost(fixed_s=0.02))


def question(rate_per_s, *, num_images=1, output_tokens=16, aim="ttft", text_share=0.0, **fields):
    images = RequestClass(name="images", num_images=num_images, output_tokens=output_tokens, share=1.0 - text_share)
    text = RequestClass(name="text", output_tokens=output_tokens, share=text_share or 1.0)
    classes = (text,) if num_images == 0 else (images, text) if text_share else (images,)
    traffic = Traffic(classes=classes, rate_per_s=rate_per_s, num_requests=120, seed=1)
    return Question(num_devices=2, traffic=traffic, aim=aim, **{"num_seeds": 2, "tries_changes": False, **fields})


def test_many_pictures_are_shared_out():
    asked = question(0.5, num_images=8)
    found = advise(asked, msgspec.structs.replace(HEAVY_ENCODE, encode=Cost(per_unit_s=2e-4)))
    assert found.is_clear
    assert found.choice == "auto x2"
    assert found.runner_up in {"agg x2", "1E+1PD"}
    assert found.over_unsplit.low > 0
    assert "could be split off" in found.reasons[0]
    assert found.choice in markdown_of(asked, found)


def test_without_pictures_nothing_is_split():
    found = advise(question(10.0, num_images=0), HEAVY_ENCODE)
    assert found.choice == "agg x2"
    assert found.break_even_tokens is None
    assert any("nothing to encode" in reason for reason in found.reasons)


def test_cheap_encoding_and_long_answers_are_no_reason_to_split():
    found = advise(question(0.5, output_tokens=200, aim="e2el"), CHEAP_ENCODE)
    assert found.choice == "agg x2"
    assert not found.is_clear or found.runner_up
    assert any("Decoding is" in reason for reason in found.reasons)


def test_a_lead_within_the_error_is_called_no_lead():
    found = advise(question(0.5, output_tokens=200, aim="e2el"), CHEAP_ENCODE)
    assert not found.is_clear
    assert "measure" in found.headline
    assert found.runner_up in found.headline


def test_overload_is_said_instead_of_a_winner():
    found = advise(question(60.0, num_images=2), HEAVY_ENCODE)
    assert "None of" in found.headline
    assert not any(trial.is_stable for trial in found.trials)
    assert found.lead is found.over_unsplit is found.break_even_tokens is None


def test_a_burst_that_is_short_is_overload_all_the_same():
    asked = question(1e6, num_images=2)
    found = advise(
        msgspec.structs.replace(asked, traffic=msgspec.structs.replace(asked.traffic, num_requests=20)), HEAVY_ENCODE
    )
    assert "None of" in found.headline


def test_nothing_is_compared_with_a_fleet_that_does_not_keep_up():
    asked = question(12.0, tier=Tier(cost=0.1))
    found = advise(asked, msgspec.structs.replace(HEAVY_ENCODE, encode=Cost(per_unit_s=8e-4)))
    stable = {trial.cluster.name: trial.is_stable for trial in found.trials}
    assert stable[found.choice]
    assert not stable["agg x2"]
    assert found.over_unsplit is found.break_even_tokens is None
    assert "Against unsplit" not in markdown_of(asked, found)


def test_media_work_is_named_when_it_is_what_costs():
    costs = msgspec.structs.replace(CHEAP_ENCODE, media=Cost(fixed_s=0.1))
    found = advise(question(1.0), costs)
    assert any("media.decode_threads" in reason for reason in found.reasons)


def test_goodput_counts_requests_within_both_demands_for_the_cost():
    asked = question(4.0, text_share=0.6, aim="goodput", objective=Objective(ttft_s=0.3, tpot_s=0.05))
    found = advise(asked, HEAVY_ENCODE)
    for trial in found.trials:
        run = trial.runs[0]
        assert run.goodput_per_s == pytest.approx(run.all.attained * run.throughput_per_s)
        assert trial.figures("goodput")[0] == pytest.approx(run.goodput_per_s / 2)


def test_changes_that_would_change_the_answer_are_found():
    asked = question(0.5, output_tokens=60, num_seeds=2, tries_changes=True)
    costs = msgspec.structs.replace(HEAVY_ENCODE, encode=Cost(fixed_s=0.0, per_unit_s=1e-4))
    found = advise(asked, costs)
    assert found.choice == "agg x2"
    assert any(flip.startswith("Twice the pictures: ") for flip in found.flips)
    assert "What would change it" in markdown_of(asked, found)


def test_no_change_is_in_favour_of_a_fleet_that_does_not_keep_up_with_it():
    asked = question(60.0, num_images=2)
    trials = ranked(advise(asked, HEAVY_ENCODE).trials, "ttft")
    assert trials[-1].figure("ttft") > 1.2 * trials[0].figure("ttft"), "another is less far behind"
    assert list(flips(asked, HEAVY_ENCODE, trials, trials[-1], 0.1, lambda _: None)) == []


def test_the_same_question_has_the_same_answer():
    asked = question(2.0, num_images=2)
    assert msgspec.json.encode(advise(asked, HEAVY_ENCODE)) == msgspec.json.encode(advise(asked, HEAVY_ENCODE))


def test_encoders_beside_engines_are_candidates_only_where_interference_was_measured():
    classes = question(1.0).traffic.classes
    names = {one.name for one in candidates(4, classes, HEAVY_ENCODE)}
    assert not any("colocated" in name for name in names)
    measured = msgspec.structs.replace(HEAVY_ENCODE, interference=Interference(resident=0.1))
    assert any("colocated" in one.name for one in candidates(4, classes, measured))


@pytest.mark.parametrize(
    ("seen", "interference", "is_looked_at"),
    [
        ((), Interference(), True),
        (("media_by_engine",), Interference(media_by_engine=0.2), False),
        (("media_by_engine",), Interference(media_by_engine=0.2, resident=0.1), True),
        (("prefill_by_encoder",), Interference(), True),
    ],
)
def test_a_profile_that_saw_no_encoders_apart_does_not_make_them_free_beside_engines(seen, interference, is_looked_at):
    evidence = dict.fromkeys(seen, Evidence(num_points=3, interval=(0.0, 0.1)))
    costs = msgspec.structs.replace(HEAVY_ENCODE, interference=interference, evidence=evidence)
    found = advise(question(0.5), costs)
    assert any("colocated" in one.cluster.name for one in found.trials) == is_looked_at
    assert any("how they slow it down is not measured" in reason for reason in found.reasons) != is_looked_at


def test_divisions_use_all_devices_and_stay_few():
    classes = question(1.0).traffic.classes
    for num_devices in (2, 3, 7, 1000):
        found = candidates(num_devices, classes, HEAVY_ENCODE)
        assert all(len(one.workers) == num_devices for one in found)
        assert len(found) <= 5


@pytest.mark.parametrize(
    ("interval", "said"),
    [
        ((math.inf, math.inf), "never ends answers sooner"),
        ((120.0, math.inf), "from 120 output tokens on in some of the runs, and never in others"),
        ((120.0, 300.0), "from 120 to 300 output tokens on"),
    ],
)
def test_break_even_is_said_as_an_interval(interval, said):
    asked = question(0.5)
    found = msgspec.structs.replace(advise(asked, HEAVY_ENCODE), break_even_tokens=interval)
    assert said in markdown_of(asked, found)


def test_what_is_twice_as_fast_is_so_in_all_its_parts():
    costs = Calibration(
        encode=Cost(fixed_s=1.0),
        encode_quadratic_s=1e-3,
        prefill=Cost(per_unit_s=1.0),
        prefill_quadratic_s=1e-3,
        step=Cost(fixed_s=1.0, per_unit_s=1.0),
        context_s=1.0,
        sharing=Sharing(num_cores=2, step_cpu=Cost(fixed_s=1.0)),
    )
    changed = {what: found for what, _, found in changes(question(0.5), costs)}
    tower, model = changed["A vision tower twice as fast"], changed["A language model twice as fast"]
    assert tower.encode_s([100]) == pytest.approx(costs.encode_s([100]) / 2)
    assert tower.prefill_s(100) == costs.prefill_s(100)
    assert model.prefill_s(100) == pytest.approx(costs.prefill_s(100) / 2)
    assert model.step_s(2, 10) == pytest.approx(costs.step_s(2, 10) / 2)
    assert model.step_cores(1, model.step_s(1)) == pytest.approx(costs.step_cores(1, costs.step_s(1)))


def test_half_the_precision_is_half_the_weights_to_read_and_no_less_arithmetic():
    costs = Calibration(prefill=Cost(fixed_s=1.0, per_unit_s=1.0), step=Cost(fixed_s=1.0, per_unit_s=1.0))
    changed = {what: found for what, _, found in changes(question(0.5), costs)}
    halved = changed["Weights of half the precision"]
    assert (halved.step_s(0), halved.step_s(2)) == (0.5, 2.5)
    assert halved.prefill_s(3) == 3.5
    assert changed["A language model twice as slow"].step_s(2) == 6.0


def test_encoders_of_another_kind_are_as_many_as_the_same_money_buys():
    classes = question(1.0, num_images=8).traffic.classes
    for cost in (0.25, 0.4, 1.0, 1.5):
        found = candidates(4, classes, HEAVY_ENCODE, Tier(cost=cost))
        assert all(one.cost <= 4 + 1e-9 for one in found)
        assert any(one.topology == "e-pd" for one in found)
    cheap = next(one for one in candidates(4, classes, HEAVY_ENCODE, Tier(cost=0.25)) if one.topology == "e-pd")
    assert sum(set(one.roles) == {"encode"} for one in cheap.workers) > 3
    assert candidates(2, classes, HEAVY_ENCODE, Tier(cost=3.0)) == [*candidates(2, (), HEAVY_ENCODE), adaptive(2)]


def test_slow_encoders_make_a_split_slower_and_nothing_else():
    classes = question(1.0, num_images=4).traffic.classes
    quick, slow = (candidates(4, classes, HEAVY_ENCODE, Tier(factor=factor)) for factor in (1.0, 10.0))
    assert quick[:2] == slow[:2]
    asked = question(0.2, num_images=4)
    split_s = [
        advise(msgspec.structs.replace(asked, tier=Tier(factor=factor)), HEAVY_ENCODE).trials[2].figure("ttft")
        for factor in (1.0, 10.0)
    ]
    assert split_s[1] > 5 * split_s[0]


def test_encoders_that_leave_little_room_for_contexts_do_not_stand_beside_engines():
    measured = msgspec.structs.replace(HEAVY_ENCODE, interference=Interference(resident=0.1), kv_tokens=10_000)
    roomy = advise(question(0.5, tier=Tier(kv_share=0.8)), measured)
    tight = advise(question(0.5, tier=Tier(kv_share=0.6)), measured)
    assert [any("colocated" in one.cluster.name for one in found.trials) for found in (roomy, tight)] == [True, False]
    assert min(one.kv_tokens for one in roomy.trials[2].cluster.workers if "decode" in one.roles) == 8_000
    assert any("60% of its room for contexts" in reason for reason in tight.reasons)


def test_without_a_clear_winner_the_cells_to_measure_are_named():
    asked = question(0.5, output_tokens=200, aim="e2el")
    found = advise(asked, CHEAP_ENCODE)
    assert not found.is_clear
    page = markdown_of(asked, found)
    assert "To measure with `chiasm bench grid`" in page
    assert found.runner_up in page
    assert "images (1 pictures" in page


def test_what_is_larger_than_what_was_measured_is_said():
    measured = {"prefill": Evidence(num_points=9, error=0.01, residuals=((20.0, 0.01), (400.0, -0.01)))}
    costs = msgspec.structs.replace(HEAVY_ENCODE, evidence=measured)
    few, many = (advise(question(0.5, num_images=count), costs).reasons for count in (1, 8))
    assert not any("beyond what was measured" in reason for reason in few)
    assert any("Prompts of 2,112 tokens are beyond what was measured (up to 400)" in reason for reason in many)
    assert not any("beyond" in reason for reason in advise(question(0.5, num_images=8), HEAVY_ENCODE).reasons)
