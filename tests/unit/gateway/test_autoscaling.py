"""Signals for autoscalers: mean waits of ready workers by stage, and who will be late."""

import pytest

from chiasm.asgi.admission import Admission
from chiasm.gateway.autoscaling import autoscaling_levels, num_late
from chiasm.protocol.fleet import FleetState, MemberState
from tests.fakes import FakeWorker


class Fleet(FakeWorker):
    """Says what its members wait for."""

    def __init__(self, *members):
        super().__init__()
        self.members = members

    def fleet_state(self):
        return FleetState(topology="e-pd", policy="", members=self.members)


def member(name, roles, encode_s=0.0, prefill_s=0.0, state="ready"):
    return MemberState(name=name, roles=roles, state=state, encode_wait_s=encode_s, prefill_wait_s=prefill_s)


def queued(num_running, num_queued, mean_run_s):
    admission = Admission(num_running, 100)
    admission.num_running, admission.num_open, admission.mean_run_s = num_running, num_running + num_queued, mean_run_s
    return admission


def test_waits_are_means_over_ready_workers_of_a_stage():
    fleet = Fleet(
        member("e0", ("encode",), 3.0),
        member("e1", ("encode",), 1.0),
        member("e2", ("encode",), 99.0, state="down"),
        member("p0", ("prefill", "decode"), prefill_s=0.5),
    )
    levels = autoscaling_levels(Admission(4, 4), fleet, 5.0)
    assert levels == {"encoder_queue_seconds": 2.0, "prefill_queue_seconds": 0.5, "predicted_slo_misses": 0}


def test_one_process_has_no_queues_between_stages():
    assert set(autoscaling_levels(Admission(4, 4), FakeWorker(), 5.0).values()) == {0}


@pytest.mark.parametrize(
    ("num_queued", "mean_run_s", "within_s", "late"),
    [
        (0, 1.0, 5.0, 0),
        (20, 1.0, 5.0, 10),
        (20, 0.0, 5.0, 0),
        (20, 1.0, -3.0, 20),
        (20, 100.0, 5.0, 20),
        (10, 1.0, 5.0, 0),
    ],
)
def test_requests_are_late_from_the_one_whose_turn_comes_too_late(num_queued, mean_run_s, within_s, late):
    assert num_late(queued(2, num_queued, mean_run_s), within_s) == late


def test_a_worker_that_is_behind_leaves_less_of_the_objective():
    fleet = Fleet(member("w", ("encode", "prefill", "decode"), 4.0, 4.0))
    assert autoscaling_levels(queued(2, 20, 1.0), fleet, 5.0)["predicted_slo_misses"] == 18
