"""What all requests of a router share."""

import secrets
from collections import Counter
from dataclasses import dataclass, field

from chiasm.routing.clock import Clock
from chiasm.routing.costs.arrivals import Arrivals
from chiasm.routing.costs.model import CostModel
from chiasm.routing.fleet import Fleet
from chiasm.routing.policies.base import Policy
from chiasm.routing.quarantine import Quarantine
from chiasm.routing.sampling import Sampling
from chiasm.routing.stages.encoding import EncodeStage
from chiasm.routing.stages.generation import GenerateStage
from chiasm.routing.view import FleetView, Job
from chiasm.settings import RoutingSettings

_COUNTED = (
    "encodes_sent",
    "encodes_local",
    "encodes_avoided_prefix",
    "encodes_avoided_embedding",
    "encodes_avoided_in_flight",
    "encodes_avoided_repeat",
    "failed_attempts",
    "requests_quarantined",
    "waits_for_worker",
)
"""What becomes of each item of a request that reached its first token, exactly one for each; tries that failed,
requests refused because workers died of them, and waits for workers that were down."""


def _nothing_yet() -> Counter[str]:
    return Counter(dict.fromkeys(_COUNTED, 0))


@dataclass(kw_only=True)
class RouterParts:
    """The router's parts, and what it counts.

    Attributes:
        counts: Totals since the start, by name.
        texts: Requests without pictures.
        quarantine: What workers died of.
        sampling: Which members a request is planned over.
        num_open: Requests under way.
    """

    settings: RoutingSettings
    clock: Clock
    fleet: Fleet
    policy: Policy
    costs: CostModel
    encode: EncodeStage
    generate: GenerateStage
    counts: Counter[str] = field(default_factory=_nothing_yet)
    texts: Arrivals = field(default_factory=Arrivals)
    quarantine: Quarantine = field(init=False)
    sampling: Sampling = field(init=False)
    num_open: int = 0

    def __post_init__(self) -> None:
        self.quarantine = Quarantine(self.settings, self.clock, self.fleet.server_of)
        self.sampling = Sampling(self.settings.max_candidates, seed=secrets.randbits(32))

    def view(self, job: Job | None = None) -> FleetView:
        """The fleet as policies see it now; of a large one, what a plan for a request is to be made over."""
        among = None if job is None else self.sampling.members(self.fleet, job)
        now_s = self.clock.now_s()
        return self.fleet.view(self.costs.costs(), self.texts.per_s(now_s), among, self.costs.hopes(now_s))

    def opened(self) -> "_Opened":
        """Count a request as under way inside the block."""
        return _Opened(self)


class _Opened:
    """A block in which a request is under way. Not a generator: every request passes through it."""

    __slots__ = ("_parts",)

    def __init__(self, parts: RouterParts) -> None:
        self._parts = parts

    def __enter__(self) -> None:
        self._parts.num_open += 1

    def __exit__(self, *_: object) -> None:
        self._parts.num_open -= 1
