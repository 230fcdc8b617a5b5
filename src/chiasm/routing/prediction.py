"""When a way through the fleet is predicted to reach its first token, and whom it delays."""

from collections.abc import Collection, Mapping

from chiasm.routing.costs.model import StageCosts
from chiasm.routing.plan import EncodeGroup, fate_of
from chiasm.routing.policies.base import EXTERNALITY
from chiasm.routing.view import FleetView, Job, WorkerView


def uncovered_tokens(job: Job, costs: StageCosts, worker: str, covered: Collection[str]) -> float:
    """Tokens that a worker has to compute of a prompt. `covered` pictures are in its prefix cache."""
    num_chars = job.num_chars - (job.prefix_chars if worker == job.prefix_owner else 0)
    pixels = [item.num_pixels for item in job.items if item.identity not in covered for _ in item.positions]
    return costs.num_tokens(num_chars, pixels)


def prefill_s(job: Job, fleet: FleetView, prefill: WorkerView) -> float:
    """Seconds that a worker computes at the prompt."""
    covered = {item.identity for item in job.items if fate_of(item, job, prefill) == "prefix"}
    return fleet.costs.prefill_s(prefill.name, uncovered_tokens(job, fleet.costs, prefill.name, covered))


def first_token_s(job: Job, fleet: FleetView, prefill: WorkerView, groups: Collection[EncodeGroup]) -> float:
    """Predicted time from now to the first token: what waits there, then encoding side by side, then the prompt."""
    ready_s = prefill.work_s + _local_encode_s(job, fleet, prefill, groups)
    waits_s = {one.name: one.work_s for one in fleet.workers}
    for group in groups:
        ready_s = max(ready_s, waits_s[group.worker] + _encode_s(job, fleet, group) + fleet.costs.hop_s)
    return ready_s + prefill_s(job, fleet, prefill)


def strain_on_others_s(job: Job, fleet: FleetView, prefill: WorkerView, groups: Collection[EncodeGroup]) -> float:
    """What the delay of generations that run already counts."""
    running = {one.name: one.num_decoding for one in fleet.workers}
    delays_s = running[prefill.name] * (prefill_s(job, fleet, prefill) + _local_encode_s(job, fleet, prefill, groups))
    delays_s += sum(running[group.worker] * _encode_s(job, fleet, group) for group in groups)
    return EXTERNALITY * delays_s


def decode_strain_s(job: Job, fleet: FleetView, decode: WorkerView) -> float:
    """How much longer the answer takes for the generations that run beside it."""
    num_tokens = min(float(job.max_output_tokens), fleet.costs.output_tokens)
    return num_tokens * fleet.costs.step.per_unit_s * decode.num_decoding


def _encode_s(job: Job, fleet: FleetView, group: EncodeGroup) -> float:
    pixels: Mapping[str, int] = {item.identity: item.num_pixels for item in job.items}
    return sum(fleet.costs.encode_s(group.worker, pixels[identity]) for identity in group.identities)


def _local_encode_s(job: Job, fleet: FleetView, prefill: WorkerView, groups: Collection[EncodeGroup]) -> float:
    """Seconds that the prefilling worker encodes on its way: what no group has."""
    sent = {identity for group in groups for identity in group.identities}
    left = [
        item for item in job.items if item.identity not in sent and fate_of(item, job, prefill) in ("encode", "local")
    ]
    return sum(fleet.costs.encode_s(prefill.name, item.num_pixels) for item in left)
