"""The way that is predicted to finish first."""

from chiasm.routing.plan import Plan, prefill_candidates
from chiasm.routing.policies.base import planned
from chiasm.routing.policies.least_work import least_busy
from chiasm.routing.view import FleetView, Job


class Adaptive:
    """x."""

    name = "adaptive"

    def plan(self, job: Job, fleet: FleetView) -> Plan:
        """See `Policy`."""
        return planned(job, fleet, policy=self.name, reason="", prefill=least_busy(prefill_candidates(job, fleet)))
