"""The worker that has the start of the prompt in its cache."""

from chiasm.routing.plan import Plan, fates_of, prefill_candidates
from chiasm.routing.policies.base import planned
from chiasm.routing.policies.least_work import least_busy
from chiasm.routing.view import FleetView, Job, WorkerView

_OVERLOAD_FACTOR = 2.0
_OVERLOAD_S = 0.25


class Content:
    """Takes the worker that served the prompt's start last, then the one with most of its pictures, then the idlest.

    A worker that has much more to do than the idlest one is passed over: a cache is no reason to stand in line.
    """

    name = "content"

    def plan(self, job: Job, fleet: FleetView) -> Plan:
        """See `Policy`."""
        workers = prefill_candidates(job, fleet)
        idlest = least_busy(workers)
        limit_s = _OVERLOAD_FACTOR * idlest.work_s + _OVERLOAD_S
        best = max(workers, key=lambda one: (_worth(job, fleet, one), -one.work_s))
        worth = _worth(job, fleet, best)
        if worth == (0, 0):
            chosen, reason = idlest, f"No worker is known to have any of it; {idlest.name} has the least to do."
        elif best.work_s > limit_s:
            chosen = idlest
            reason = f"{best.name} has it, and {1e3 * best.work_s:.0f} ms of work; {idlest.name} has less."
        else:
            chosen = best
            reason = f"{best.name} has {worth[0]} characters of the start and {worth[1]} of {len(job.items)} pictures."
        return planned(job, fleet, policy=self.name, reason=reason, prefill=chosen)


def _worth(job: Job, fleet: FleetView, worker: WorkerView) -> tuple[int, int]:
    """Characters of the start, and pictures, that the worker has."""
    chars = job.known_chars(worker.name)
    fates = fates_of(job, fleet, worker)
    has = sum(fates[item.identity] == "prefix" or worker.name in item.holders for item in job.items)
    return chars, has
