"""The worker with the least to do."""

from chiasm.routing.plan import Plan, prefill_candidates
from chiasm.routing.policies.base import planned
from chiasm.routing.view import FleetView, Job, WorkerView


def by_work(worker: WorkerView) -> tuple[float, int, int]:
    """Sorts by predicted work; equals by how many sequences wait and run."""
    return worker.encode_wait_s + worker.prefill_wait_s, worker.num_waiting, worker.num_decoding


def least_busy(workers: list[WorkerView]) -> WorkerView:
    """The one with the least predicted work."""
    return min(workers, key=by_work)


class LeastWork:
    """Takes the worker whose predicted work, encoding and prompts in seconds, is least. Counts of requests lie."""

    name = "least_work"

    def plan(self, job: Job, fleet: FleetView) -> Plan:
        """See `Policy`."""
        workers = prefill_candidates(job, fleet)
        chosen = least_busy(workers)
        reason = f"{chosen.name} has {1e3 * chosen.work_s:.0f} ms of work, the least of {len(workers)}."
        return planned(job, fleet, policy=self.name, reason=reason, prefill=chosen)
