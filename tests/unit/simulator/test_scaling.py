import pytest

from chiasm.errors import InvalidSettingError
from chiasm.simulator.calibration import Calibration, Cost
from chiasm.simulator.cluster import aggregated, disaggregated
from chiasm.simulator.run import Changes, simulate
from chiasm.simulator.scaling import Scaling, desired
from chiasm.simulator.traffic import Picture, Request, RequestClass, Traffic

COSTS = Calibration(
    encode=Cost(fixed_s=0.5), prefill=Cost(fixed_s=0.001), step=Cost(fixed_s=0.001), max_encode_tokens=1
)
BUSY = Traffic(
    classes=(RequestClass(num_images=1, output_tokens=2),), rate_per_s=6.0, arrivals="constant", num_requests=1200
)


@pytest.mark.parametrize(
    ("num_now", "level_s", "expected"), [(4, 0.5, 4), (4, 0.54, 4), (4, 1.0, 8), (4, 0.6, 5), (4, 0.1, 1), (4, 0.0, 0)]
)
def test_replicas_are_as_many_as_bring_the_mean_to_its_target(num_now, level_s, expected):
    assert desired(num_now, level_s, 0.5) == expected


def test_encoders_come_until_the_work_is_borne():
    scaling = Scaling(max_encoders=10, queue_s=0.5, start_s=5.0)
    fixed = simulate(disaggregated(1, 1), BUSY, COSTS)
    scaled = simulate(disaggregated(1, 1), BUSY, COSTS, changes=Changes(scaling=scaling))
    assert 3 <= scaled.most_encoders <= 10  # six a second, each for half a second
    assert scaled.record.ttft_s[-100:].mean() < 2.0
    assert fixed.record.ttft_s[-100:].mean() > 100.0
    assert len(scaled.record) == BUSY.num_requests
    assert 1.0 < scaled.mean_encoders < scaled.most_encoders


def test_there_are_never_more_than_may_be():
    assert (
        simulate(disaggregated(1, 1), BUSY, COSTS, changes=Changes(scaling=Scaling(max_encoders=2))).most_encoders == 2
    )


def test_encoders_go_when_it_has_been_calm_and_lose_nothing():
    requests = [*(0.1 * n for n in range(300)), *(30.0 + 20.0 * n for n in range(1, 60))]
    trace = list(_at(requests))
    scaling = Scaling(max_encoders=12, queue_s=0.5, start_s=2.0, calm_s=60.0)
    outcome = simulate(disaggregated(1, 1), BUSY, COSTS, requests=trace, changes=Changes(scaling=scaling))
    assert len(outcome.record) == len(requests)
    assert outcome.most_encoders >= 4
    assert outcome.mean_encoders < outcome.most_encoders / 1.5


def _at(times):
    for number, at_s in enumerate(times):
        yield Request(
            number=number,
            at_s=at_s,
            class_name="all",
            text_tokens=9,
            output_tokens=2,
            pictures=(Picture(f"p{number}", 9, 9),),
        )


def test_a_fleet_without_encoders_apart_has_nothing_to_scale():
    with pytest.raises(InvalidSettingError, match="no encoders apart"):
        simulate(aggregated(1), BUSY, COSTS, changes=Changes(scaling=Scaling(max_encoders=2)))
