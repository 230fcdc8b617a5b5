"""One after the other."""

from chiasm.routing.plan import Plan, prefill_candidates
from chiasm.routing.policies.base import planned
from chiasm.routing.view import FleetView, Job


class RoundRobin:
    """Takes the workers in turn, whatever they have to do."""

    name = "round_robin"

    def __init__(self) -> None:
        self._num_planned = 0

    def plan(self, job: Job, fleet: FleetView) -> Plan:
        """See `Policy`."""
        workers = prefill_candidates(job, fleet)
        turn = self._num_planned % len(workers)
        self._num_planned += 1
        reason = f"{workers[turn].name} is next of {len(workers)}."
        return planned(job, fleet, policy=self.name, reason=reason, prefill=workers[turn])
