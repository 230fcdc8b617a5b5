"""When a way through the fleet is predicted to reach its first token, and whom it delays."""

from collections.abc import Collection, Sequence

from chiasm.routing.costs.model import StageCosts
from chiasm.routing.overlap import saved_s
from chiasm.routing.plan import EncodeGroup, fate_of
from chiasm.routing.policies.base import EXTERNALITY
from chiasm.routing.view import FleetView, Job, WorkerView

_MAX_TEXT_WEIGHT = 3.0


def uncovered_tokens(job: Job, costs: StageCosts, worker: str, covered: Collection[str]) -> float:
    """Tokens that a worker has to compute of a prompt. `covered` pictures are in its prefix cache."""
    num_chars = job.num_chars - job.known_chars(worker)
    pixels = [item.num_pixels for item in job.items if item.identity not in covered for _ in item.positions]
    return costs.num_tokens(num_chars, pixels)


def decode_strain_s(job: Job, fleet: FleetView, decode: WorkerView) -> float:
    """How much longer the answer takes for the generations that run beside it."""
    num_tokens = min(float(job.max_output_tokens), fleet.costs.output_tokens)
    return num_tokens * fleet.costs.step.per_unit_s * decode.num_decoding


class Outlook:
    """What becomes of a request when one worker prefills it, depending on who encodes.

    Attributes:
        prefill_s: Predicted seconds of computing the prompt.
    """

    def __init__(self, job: Job, fleet: FleetView, prefill: WorkerView) -> None:
        fates = {item.identity: fate_of(item, job, fleet, prefill) for item in job.items}
        covered = {identity for identity, fate in fates.items() if fate == "prefix"}
        num_tokens = uncovered_tokens(job, fleet.costs, prefill.name, covered)
        self._job = job
        self._prefill = prefill
        self._fleet = fleet
        self._pixels = {one.identity: one.num_pixels for one in job.items if fates[one.identity] in ("encode", "local")}
        self.prefill_s = fleet.costs.prefill_s(prefill.name, num_tokens)

    def first_token_s(self, groups: Sequence[EncodeGroup]) -> float:
        """Predicted time from now: what waits at workers, then encoding side by side, then the rest of the prompt."""
        ready_s = self._prefill.work_s + self._local_s(groups)
        if groups:
            work_s = {one.name: one.work_s for one in self._fleet.workers}
            ends_s = [work_s[group.worker] + self._group_s(group) + self._fleet.costs.hop_s for group in groups]
            ready_s = max(ready_s, *ends_s)
            if any(group.worker != self._prefill.name for group in groups):
                ready_s += self._fleet.costs.take_s
        saved = saved_s(self._job, self._fleet.costs, self._prefill.name, groups)
        return ready_s + self.prefill_s - min(saved, ready_s)

    def strain_on_others_s(self, groups: Sequence[EncodeGroup]) -> float:
        """What the delay of generations that run already counts."""
        delays_s = self._prefill.num_decoding * (self.prefill_s + self._local_s(groups))
        if groups:
            running = {one.name: one.num_decoding for one in self._fleet.workers}
            delays_s += sum(running[group.worker] * self._group_s(group) for group in groups)
        return EXTERNALITY * delays_s

    def strain_on_texts_s(self, groups: Sequence[EncodeGroup]) -> float:
        """What the delay of requests without pictures that will come meanwhile counts.

        One goes to the worker that is free first, so that texts wait only while all are busy: until the least busy is
        free, half that time on average. Their seconds count by as much more as their own work is less, within a limit.
        """
        if not self._pixels or not self._fleet.text_per_s:
            return 0.0
        busy_s = {one.name: one.work_s for one in self._fleet.workers if "prefill" in one.roles}
        before_s = min(busy_s.values())
        busy_s[self._prefill.name] += self._local_s(groups) + self.prefill_s
        for group in groups:
            if group.worker in busy_s:
                busy_s[group.worker] += self._group_s(group)
        waited_s = self._fleet.text_per_s * (min(busy_s.values()) ** 2 - before_s**2) / 2
        ratio = (self._local_s(()) + self.prefill_s) / self._fleet.costs.text_prefill_s
        return waited_s * min(max(ratio, 1.0), _MAX_TEXT_WEIGHT)

    def _group_s(self, group: EncodeGroup) -> float:
        costs = self._fleet.costs
        return sum(costs.encode_s(group.worker, self._pixels[identity]) for identity in group.identities)

    def _local_s(self, groups: Sequence[EncodeGroup]) -> float:
        """Seconds that the prefilling worker encodes on its way: what no group has."""
        if not self._pixels:
            return 0.0
        sent = {identity for group in groups for identity in group.identities}
        name, costs = self._prefill.name, self._fleet.costs
        return sum(costs.encode_s(name, pixels) for identity, pixels in self._pixels.items() if identity not in sent)
