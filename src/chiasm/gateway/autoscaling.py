"""What autoscalers look at: work that waits for encoders, and requests that will be late. Computed when asked for."""

import math
from collections.abc import Mapping

from chiasm.asgi.admission import Admission
from chiasm.protocol.fleet import Fleetlike, FleetState
from chiasm.protocol.worker import Worker


def autoscaling_levels(admission: Admission, worker: Worker, ttft_slo_s: float) -> Mapping[str, float]:
    """Levels for `/metrics`.

    `encoder_queue_seconds` is the predicted work of encoders that was not done yet, per encoder that is ready: what a
    picture would wait for on average. `prefill_queue_seconds` is the same for prompts. `predicted_slo_misses` are the
    requests that wait now and will not have a first token within the objective, at the pace of late.
    """
    fleet = worker.fleet_state() if isinstance(worker, Fleetlike) else None
    encode_s, prefill_s = (mean_wait_s(fleet, role) for role in ("encode", "prefill"))
    return {
        "encoder_queue_seconds": encode_s,
        "prefill_queue_seconds": prefill_s,
        "predicted_slo_misses": num_late(admission, ttft_slo_s - min(encode_s, prefill_s)),
    }


def num_late(admission: Admission, within_s: float) -> int:
    """Waiting requests that get no slot within a time: the k-th gets one after k/slots mean run times."""
    per_slot_s = admission.mean_run_s / admission.max_running
    in_time = admission.num_queued if per_slot_s == 0 else math.floor(max(0.0, within_s) / per_slot_s)
    return max(0, admission.num_queued - in_time)


def mean_wait_s(fleet: FleetState | None, role: str) -> float:
    """What work of a role would wait for at a worker that is ready, on average; 0 where there is none."""
    if fleet is None:
        return 0.0
    ready = [one for one in fleet.members if one.state == "ready" and role in one.roles]
    waits_s = [one.encode_wait_s if role == "encode" else one.prefill_wait_s for one in ready]
    return sum(waits_s) / len(waits_s) if waits_s else 0.0
