import pytest

from chiasm.errors import InvalidSettingError
from chiasm.routing import autoscaler
from chiasm.simulator import scaling as simulated
from chiasm.simulator.calibration import Calibration, Cost
from chiasm.simulator.cluster import aggregated, disaggregated
from chiasm.simulator.run import Changes, simulate
from chiasm.simulator.scaling import Scaling
from chiasm.simulator.traffic import Picture, Request, RequestClass, Traffic

COSTS = Calibration(
    encode=Cost(fixed_s=0.5), prefill=Cost(fixed_s=0.001), step=Cost(fixed_s=0.001), max_encode_tokens=1
)
BUSY = Traffic(
    classes=(RequestClass(num_images=1, output_tokens=2),), rate_per_s=6.0, arrivals="constant", num_requests=1200
)


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


def falls(monkeypatch, patience):
    """How often an encoder goes, and what the load gets, when one and a half encoders are needed all the time."""
    decided = []

    class Recorded(autoscaler.Autoscaler):
        def decide(self, now_s, signal):
            decision = super().decide(now_s, signal)
            decided.append(decision.num_wanted - signal.num_encoders)
            return decision

    monkeypatch.setattr(simulated, "Autoscaler", Recorded)
    monkeypatch.setattr(autoscaler, "_MAX_PATIENCE", patience)
    steady = Traffic(
        classes=(RequestClass(num_images=1, output_tokens=2),), rate_per_s=3.0, arrivals="constant", num_requests=4000
    )
    scaling = Scaling(max_encoders=2, queue_s=0.5, start_s=5.0, calm_s=30.0)
    outcome = simulate(disaggregated(1, 1), steady, COSTS, changes=Changes(scaling=scaling))
    return sum(change < 0 for change in decided), outcome.record.ttft_s.mean()


def test_encoders_do_not_come_and_go_for_ever_under_a_load_between_two_numbers(monkeypatch):
    num_plain, plain_s = falls(monkeypatch, patience=1)
    num_patient, patient_s = falls(monkeypatch, patience=8)
    assert num_plain >= 10, "the plain rule swings; else this test shows nothing"
    assert num_patient <= num_plain / 2
    assert patient_s < plain_s


def test_a_fleet_without_encoders_apart_has_nothing_to_scale():
    with pytest.raises(InvalidSettingError, match="no encoders apart"):
        simulate(aggregated(1), BUSY, COSTS, changes=Changes(scaling=Scaling(max_encoders=2)))
