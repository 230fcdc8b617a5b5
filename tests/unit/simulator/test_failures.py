import pytest

from chiasm.errors import InvalidSettingError
from chiasm.simulator.calibration import Calibration, Cost
from chiasm.simulator.cluster import adaptive, aggregated, colocated, disaggregated, split
from chiasm.simulator.failures import Death, Failures
from chiasm.simulator.run import Changes, simulate
from chiasm.simulator.summary import summarise
from chiasm.simulator.traffic import Picture, Request, RequestClass, Traffic

COSTS = Calibration(
    media=Cost(fixed_s=0.005),
    encode=Cost(fixed_s=0.01, per_unit_s=1e-4),
    prefill=Cost(fixed_s=0.01, per_unit_s=1e-4),
    step=Cost(fixed_s=0.005, per_unit_s=1e-4),
    transfer=Cost(fixed_s=0.001),
    kv_transfer=Cost(fixed_s=0.001),
)
MIX = Traffic(
    classes=(RequestClass(name="images", num_images=2, output_tokens=20, repeat_share=0.3), RequestClass(name="text")),
    rate_per_s=12.0,
    num_requests=400,
)
ONE = Traffic(classes=(RequestClass(num_images=1),))


def one_text(at_s=0.0, output_tokens=11):
    return Request(number=0, at_s=at_s, class_name="all", text_tokens=100, output_tokens=output_tokens)


def only(worker, at_s, down_s):
    return Changes(failures=Failures(planned=(Death(worker=worker, at_s=at_s, down_s=down_s),)))


@pytest.mark.parametrize("fleet", [aggregated(3), adaptive(3), colocated(2), disaggregated(2, 2), split(2, 2, 2)])
@pytest.mark.parametrize("ahead", [False, True])
def test_every_request_ends_once_whatever_dies(fleet, ahead):
    costs = Calibration(**{name: getattr(COSTS, name) for name in COSTS.__struct_fields__} | {"prefill_ahead": ahead})
    failures = Failures(mean_up_s=6.0, mean_down_s=2.0, seed=3)
    outcome = simulate(fleet, MIX, costs, changes=Changes(failures=failures))
    assert outcome.num_deaths > 3
    assert len(outcome.record) + len(outcome.record.failed_at_s) == MIX.num_requests
    assert len(outcome.record) > 0.6 * MIX.num_requests
    assert (outcome.record.e2el_s >= outcome.record.ttft_s).all()


def test_workers_that_are_back_at_once_stay_in_the_fleet():
    failures = Failures(mean_up_s=6.0, mean_down_s=0.0, seed=3)
    outcome = simulate(disaggregated(2, 2), MIX, COSTS, changes=Changes(failures=failures))
    assert outcome.num_deaths > 5
    assert outcome.record.at_s.max() > 0.9 * MIX.num_requests / MIX.rate_per_s
    assert len(outcome.record) > 0.7 * MIX.num_requests


def test_a_prompt_that_is_lost_waits_for_its_worker_and_is_computed_again():
    costs = Calibration(prefill=Cost(per_unit_s=0.01), step=Cost(fixed_s=0.1), max_step_tokens=1000)
    outcome = simulate(aggregated(1), ONE, costs, requests=[one_text()], changes=only("worker-0", 0.5, 2.0))
    assert outcome.record.ttft_s[0] == pytest.approx(0.5 + 2.0 + 1.0)
    assert outcome.record.e2el_s[0] == pytest.approx(3.5 + 10 * 0.1)


def test_another_worker_takes_over_at_once():
    costs = Calibration(prefill=Cost(per_unit_s=0.01), step=Cost(fixed_s=0.1), max_step_tokens=1000)
    outcome = simulate(aggregated(2), ONE, costs, requests=[one_text()], changes=only("worker-0", 0.5, 60.0))
    assert outcome.record.ttft_s[0] == pytest.approx(0.5 + 1.0)


def test_after_the_first_token_a_death_ends_the_request():
    costs = Calibration(prefill=Cost(per_unit_s=0.01), step=Cost(fixed_s=0.1), max_step_tokens=1000)
    requests = [one_text(), one_text(at_s=5.0)]
    outcome = simulate(aggregated(1), ONE, costs, requests=requests, changes=only("worker-0", 1.35, 1.0))
    assert outcome.record.failures == {("all", "engine_dead"): 1}
    assert list(outcome.record.at_s) == [5.0]


def test_pictures_of_a_dead_encoder_are_made_by_another():
    costs = Calibration(encode=Cost(fixed_s=1.0), prefill=Cost(fixed_s=0.5), step=Cost(fixed_s=0.1))
    request = Request(
        number=0, at_s=0.0, class_name="all", text_tokens=9, output_tokens=1, pictures=(Picture("p", 9, 9),)
    )
    outcome = simulate(disaggregated(2, 1), ONE, costs, requests=[request], changes=only("encode-0", 0.4, 60.0))
    assert outcome.record.ttft_s[0] == pytest.approx(0.4 + 1.0 + 0.5)


def test_a_worker_that_is_down_for_good_leaves_requests_with_an_error():
    costs = Calibration(prefill=Cost(per_unit_s=0.01), step=Cost(fixed_s=0.1))
    outcome = simulate(aggregated(1), ONE, costs, requests=[one_text()], changes=only("worker-0", 0.5, 1e6))
    assert outcome.record.failures == {("all", "engine_dead"): 1}
    with pytest.raises(InvalidSettingError, match="1 engine_dead"):
        summarise(outcome, media_threads=2)


def test_who_failed_has_not_attained_anything():
    costs = Calibration(prefill=Cost(per_unit_s=0.01), step=Cost(fixed_s=0.1), max_step_tokens=1000)
    requests = [one_text(at_s=5.0 * n) for n in range(4)]
    outcome = simulate(aggregated(1), ONE, costs, requests=requests, changes=only("worker-0", 1.35, 1.0))
    summary = summarise(outcome, media_threads=2)
    assert (summary.all.num_failed, summary.failures, summary.num_deaths) == (1, {"engine_dead": 1}, 1)
    assert summary.all.attained == pytest.approx(0.75)


def test_the_same_seed_kills_the_same_workers_at_the_same_times():
    failures = Failures(mean_up_s=6.0, mean_down_s=2.0, seed=3)
    first, again = (
        simulate(disaggregated(2, 2), MIX, COSTS, changes=Changes(failures=failures)).record.e2el_s for _ in range(2)
    )
    assert list(first) == list(again)


def test_nobody_dies_who_is_not_there():
    with pytest.raises(InvalidSettingError, match="no worker 'x'"):
        simulate(aggregated(1), MIX, COSTS, changes=only("x", 1.0, 1.0))
