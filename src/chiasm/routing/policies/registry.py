"""The policies by the names they have in settings."""

from chiasm.routing.policies.base import Policy
from chiasm.settings import RoutingSettings


def make_policy(settings: RoutingSettings) -> Policy:
    """The policy that the settings name."""
    if settings.policy == "round_robin":
        from chiasm.routing.policies.round_robin import RoundRobin

        return RoundRobin()
    if settings.policy == "least_work":
        from chiasm.routing.policies.least_work import LeastWork

        return LeastWork()
    if settings.policy == "content":
        from chiasm.routing.policies.content import Content

        return Content()
    from chiasm.routing.policies.adaptive import Adaptive

    return Adaptive()
