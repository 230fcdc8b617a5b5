"""For `auto`: the way that a fault can be met on. The adaptive policy might well encode where it prefills."""

from chiasm.routing.plan import Plan, encode_candidates, prefill_candidates
from chiasm.routing.policies.adaptive import Adaptive
from chiasm.routing.policies.base import assembled, items_to_encode, spread
from chiasm.routing.policies.least_work import least_busy
from chiasm.routing.view import FleetView, Job


class EncodesElsewhere:
    """Sends pictures to other workers than the prefilling one while any is left; otherwise does as `Adaptive`."""

    name = "encodes_elsewhere"

    def __init__(self) -> None:
        self._adaptive = Adaptive()

    def plan(self, job: Job, fleet: FleetView) -> Plan:
        """See `Policy`."""
        prefill = least_busy(prefill_candidates(job, fleet))
        others = [one for one in encode_candidates(job, fleet) if one.name != prefill.name]
        groups = spread(items_to_encode(job, fleet, prefill), others, fleet)
        if not groups:
            return self._adaptive.plan(job, fleet)
        reason = f"{prefill.name} is not to encode what it prefills."
        return assembled(job, fleet, policy=self.name, reason=reason, prefill=prefill, groups=groups)
