"""From what a gateway reports to encoders that come and go, or to a line that says what would be done."""

import logging

from chiasm.launch.processes.messages import Load
from chiasm.routing.autoscaler import Autoscaler, Decision, ScalingRule, Signal
from chiasm.settings import Settings

logger = logging.getLogger(__name__)


def rule_of(settings: Settings) -> ScalingRule:
    """What the settings say of scaling."""
    cluster, num_fixed = settings.cluster, settings.routing.encoders
    return ScalingRule(
        min_encoders=num_fixed,
        max_encoders=max(num_fixed, cluster.max_encoders),
        queue_s=cluster.encoder_queue_s,
        calm_s=cluster.calm_s,
        fall_period_s=min(60.0, cluster.calm_s),
        hour_cost=cluster.encoder_hour_cost,
        max_hour_cost=cluster.max_hour_cost,
    )


def can_scale(settings: Settings) -> bool:
    """Whether there are encoders apart, and somebody wants to know."""
    return settings.cluster.scaling != "off" and settings.routing.topology in ("e-pd", "e-p-d")


class Scaling:
    """Decides by reports and tells what changed its mind.

    Attributes:
        num_wanted: How many encoders it wants; None before its first decision.
    """

    def __init__(self, settings: Settings) -> None:
        self._autoscaler = Autoscaler(rule_of(settings))
        self._is_acting = settings.cluster.scaling == "act"
        self.num_wanted: int | None = None

    def decide(self, now_s: float, load: Load, names: tuple[str, ...]) -> Decision:
        """Decide for the encoders of these names, which are there or start."""
        ready = [name for name in names if name in load.members and load.members[name].state == "ready"]
        signal = Signal(
            num_encoders=len(names),
            num_ready=len(ready),
            queue_s=load.levels["encoder_queue_seconds"],
            slo_misses=load.levels["predicted_slo_misses"],
        )
        decision = self._autoscaler.decide(now_s, signal)
        if decision.num_wanted != len(names) and (self._is_acting or decision.num_wanted != self.num_wanted):
            verb = "changes" if self._is_acting else "would change"
            logger.info("Scaling %s encoders from %d to %d: %s", verb, len(names), decision.num_wanted, decision.reason)
        self.num_wanted = decision.num_wanted
        return decision
