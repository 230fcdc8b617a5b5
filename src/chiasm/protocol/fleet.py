"""What a fleet looks like to people: who is in it, what each has under way, and whether it can be relied on."""

from typing import Protocol, runtime_checkable

import msgspec

from chiasm.protocol.deletion import Deletion
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


class WorkerProcessState(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's process on the gateway's machine. `state` is that of `MemberState`."""

    name: str
    pid: int
    state: str


@runtime_checkable
class Renewable(Protocol):
    """Whoever runs worker processes and can replace them by new ones while requests go on."""

    def processes(self) -> tuple[WorkerProcessState, ...]:
        """Those that run now; never blocks."""
        ...

    async def renew(self, name: str, *, alone: bool) -> WorkerProcessState:
        """Give a process no more work, let it finish what it has, and wait until its successor answers.

        Args:
            name: One of `processes`.
            alone: Do so also where nobody else plays one of its roles: requests wait meanwhile.

        Raises:
            InvalidRequestError: No such process, or nobody else plays one of its roles.
            OverloadedError: Another one is being replaced.
            EngineStartError: The successor did not come up; it is started again, as after any other end.
        """
        ...


@runtime_checkable
class Concerted(Protocol):
    """A fleet that several gateways route to: what one of them learns or decides, the others can be told."""

    def take_notes(self, max_notes: int, max_bytes: int) -> bytes | None:
        """What was learned about contents since the last call, for `learn` of others; None for nothing."""
        ...

    def learn(self, notes: bytes) -> int:
        """Remember what another gateway has learned; returns how much of it was of use."""
        ...

    def forget_known(self, deletion: Deletion) -> int:
        """Forget where things are that a deletion covers, asking no worker; returns of how many that was known."""
        ...

    def drain(self, name: str, *, is_over: bool = False, is_told: bool = False) -> bool:
        """Give a worker no more work, or work again; returns whether there is one of this name.

        `is_told`: another gateway says so, which knows nothing of a process of this one's own under the same name.
        """
        ...


class GatewayProcessState(msgspec.Struct, frozen=True, kw_only=True):
    """The process that answers. `state` is 'serving', 'starting' (a successor) or 'leaving' (it has taken over).

    `error` is why the last successor did not start.
    """

    pid: int
    state: str
    error: str = ""


class Replaceable(Protocol):
    """A server that can give its place to a successor."""

    def gateway_process(self) -> GatewayProcessState:
        """Who serves; never blocks."""
        ...

    def replace(self) -> None:
        """Start a successor, which takes over when it is ready; returns at once.

        Raises:
            OverloadedError: One is starting.
            ShuttingDownError: The server ends.
        """
        ...


@runtime_checkable
class Fleetlike(Protocol):
    """A worker that consists of others."""

    def fleet_state(self) -> FleetState:
        """A snapshot; cheap, never blocks."""
        ...
