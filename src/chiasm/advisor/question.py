"""What the advisor is asked."""

import msgspec

from chiasm.advisor.evaluate import Aim
from chiasm.simulator.summary import Objective
from chiasm.simulator.traces.trace import Trace
from chiasm.simulator.traffic import Traffic


class Tier(msgspec.Struct, frozen=True, kw_only=True):
    """What encoders apart stand on, and what encoders beside an engine take from it.

    Attributes:
        cost: Of a device for encoders, in units of one of the others.
        factor: Time of the vision tower there, relative to an encoder on one of the others.
        kv_share: Of an engine's room for contexts, what an encoder on its own device leaves.
    """

    cost: float = 1.0
    factor: float = 1.0
    kv_share: float = 1.0


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """So many devices, this traffic, and what is to be best.

    Attributes:
        num_devices: What there is to spend, in devices that can hold an engine.
        tier: Of encoders.
        trace: Requests as they came; `traffic` is then what is like them, and asked about changes.
        num_seeds: Simulations of each fleet, each with other requests.
        is_one_host: Whether all workers, the gateway and the client share one host's cores, as the profile saw it.
        tries_changes: Whether to look for changes that would change the answer, which takes most of the time.
    """

    num_devices: int
    traffic: Traffic
    tier: Tier = Tier()
    trace: Trace | None = None
    aim: Aim = "ttft"
    objective: Objective = Objective()
    num_seeds: int = 4
    is_one_host: bool = False
    tries_changes: bool = True
