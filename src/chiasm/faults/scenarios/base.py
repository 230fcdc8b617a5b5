"""A scenario: one fault, where it can be met, and what is expected then."""

from collections.abc import Callable
from typing import Literal

import msgspec

from chiasm.connectors.faulty import Fault as Tampering
from chiasm.connectors.faulty import GetFault, PutFault
from chiasm.faults.client import FINISHED
from chiasm.faults.fault import Fault, Processes, Tensor, TransportFault
from chiasm.faults.rig import Topology

SPLIT: tuple[Topology, ...] = ("e-pd", "e-p-d", "auto")
Group = Literal["embedding", "late", "metadata", "kv", "client", "kill"]


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that goes wrong for one request, the target.

    Attributes:
        make: Builds the fault; gets the worker processes of a fleet that has them.
        outcome: 'finished', with the right tokens; or the code that the target ends with.
        min_failures: So many failed attempts at least are on the receipt.
        max_failures: And so many at most.
        pictures: How many the target shows.
        max_tokens: How many the target asks for.
        timeout_s: The target's deadline.
        is_picture_first: Both neighbours are past their first tokens before the target comes.
        local_encode: As in `routing.local_encode`.
        overlap: As in `routing.overlap`.
        shows_slow_url: The target's picture is a URL that never ends.
        shares_picture: Another request shows the target's picture, and must not notice.
    """

    name: str
    group: Group
    what: str
    make: Callable[[Processes | None], Fault]
    topologies: tuple[Topology, ...] = SPLIT
    outcome: str = FINISHED
    min_failures: int = 0
    max_failures: int = 8
    pictures: int = 1
    max_tokens: int = 12
    timeout_s: float = 60.0
    is_picture_first: bool = False
    local_encode: Literal["fallback", "never"] = "fallback"
    overlap: Literal["auto", "always"] = "auto"
    shows_slow_url: bool = False
    shares_picture: bool = False

    @property
    def needs_processes(self) -> bool:
        """Whether workers are killed, which must then be processes of their own."""
        return self.group == "kill"


def tampered(
    kind: PutFault | GetFault, *, tensor: Tensor = "embedding", times: int = 1, delay_s: float = 0.0
) -> Callable[[Processes | None], Fault]:
    """A maker of transport faults; see `chiasm.connectors.faulty.Fault` for the kinds."""
    return lambda _: TransportFault(Tampering(kind=kind, delay_s=delay_s), tensor, times)
