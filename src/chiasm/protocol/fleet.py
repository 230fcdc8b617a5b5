"""What a fleet looks like to people: who is in it, what each has under way, and whether it can be relied on."""

from typing import Protocol, runtime_checkable

import msgspec

from chiasm.protocol.worker import Role, WorkerStats


class MemberState(msgspec.Struct, frozen=True, kw_only=True):
    """One worker. `num_encoding`, `num_prefilling` and `num_decoding` are calls under way there, the waits predictions.

    `state` is 'starting', 'ready', 'draining' or 'down', and `reason` says why. `stats` are the worker's own, None as
    long as it has not been asked.
    """

    name: str
    roles: tuple[Role, ...]
    state: str
    reason: str = ""
    device: str = ""
    num_encoding: int = 0
    num_prefilling: int = 0
    num_decoding: int = 0
    encode_wait_s: float = 0.0
    prefill_wait_s: float = 0.0
    stats: WorkerStats | None = None


class FleetState(msgspec.Struct, frozen=True, kw_only=True):
    """All workers behind one gateway."""

    topology: str
    policy: str
    members: tuple[MemberState, ...]


@runtime_checkable
class Fleetlike(Protocol):
    """A worker that consists of others."""

    def fleet_state(self) -> FleetState:
        """A snapshot; cheap, never blocks."""
        ...
