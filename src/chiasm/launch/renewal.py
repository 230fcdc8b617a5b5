"""Replacing worker processes by new ones while the server works, so that no request notices."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from chiasm.errors import EngineStartError, InvalidRequestError, OverloadedError
from chiasm.launch.members import Members
from chiasm.launch.processes.supervisor import Supervisor
from chiasm.protocol.fleet import WorkerProcessState
from chiasm.routing.fleet import Fleet

logger = logging.getLogger(__name__)
_JOIN_TIMEOUT_S = 60.0
"""For what comes before and after a start: the old process's end, and the tiny request that the new one answers."""
_LOOK_INTERVAL_S = 0.02


class Renewals:
    """See `Renewable`. Belongs to the event loop that the supervisor is kept on."""

    def __init__(
        self, fleet: Fleet, members: Members, supervisor: Supervisor, drain_timeout_s: float, start_timeout_s: float
    ) -> None:
        self._fleet = fleet
        self._members = members
        self._supervisor = supervisor
        self._drain_timeout_s = drain_timeout_s
        self._back_timeout_s = start_timeout_s + _JOIN_TIMEOUT_S
        self._one_at_a_time = asyncio.Lock()

    def processes(self) -> tuple[WorkerProcessState, ...]:
        """See `Renewable`."""
        return tuple(
            WorkerProcessState(name=name, pid=pid, state=self._state_of(name))
            for name, pid in self._supervisor.pids.items()
        )

    async def renew(self, name: str, *, alone: bool) -> WorkerProcessState:
        """See `Renewable`."""
        if name not in self._supervisor.pids:
            known = ", ".join(self._supervisor.pids) or "none"
            raise InvalidRequestError(f"'{name}' is no process of this server", hint=f"Its processes: {known}")
        if self._one_at_a_time.locked():
            raise OverloadedError(
                "Another worker is being replaced", hint="One after the other: try again when it is up"
            )
        async with self._one_at_a_time:
            names = self._members.behind(name)
            if not alone:
                self._check_others(names)
            await self._drain(names)
            old = [self._fleet.find(one) for one in names]
            await self._supervisor.renew(name)
            if not await _until(lambda: self._is_renewed(name, old), self._back_timeout_s):
                raise EngineStartError(
                    f"Worker '{name}' is not back after {self._back_timeout_s:.0f} s", hint="See its log"
                )
        renewed = next((one for one in self.processes() if one.name == name), None)
        if renewed is None:
            raise EngineStartError(f"Worker '{name}' came back and ended at once", hint="See its log")
        return renewed

    def _state_of(self, name: str) -> str:
        """The worst state of the members that it stands for; 'starting' before they have joined."""
        members = [self._fleet.find(one) for one in self._members.behind(name)]
        states = [member.state if member is not None else "starting" for member in members]
        return next((state for state in states if state != "ready"), "ready")

    def _check_others(self, names: Sequence[str]) -> None:
        """Raise `InvalidRequestError` where a stage would be without a worker meanwhile."""
        for name in names:
            member = self._fleet.find(name)
            for role in member.info.roles if member is not None else ():
                if all(other.name in names for other in self._fleet.with_role(role)):
                    raise InvalidRequestError(
                        f"No other worker than '{name}' can {role} now",
                        hint="Requests would wait for its successor, at most routing.wait_for_worker_s. "
                        "Start another worker, or say that this is meant: --alone (alone=true over HTTP)",
                    )

    async def _drain(self, names: Sequence[str]) -> None:
        for name in names:
            if self._fleet.find(name) is not None:
                self._fleet.drain(name)
        members = [member for name in names if (member := self._fleet.find(name)) is not None]
        if not await _until(lambda: not any(member.num_open for member in members), self._drain_timeout_s):
            logger.warning("Worker '%s' still has work after %.0f s", names[0], self._drain_timeout_s)

    def _is_renewed(self, name: str, old: Sequence[object]) -> bool:
        members = [self._fleet.find(one) for one in self._members.behind(name)]
        return all(one is not None and one.state == "ready" and one not in old for one in members)


async def _until(is_so: Callable[[], bool], timeout_s: float) -> bool:
    """Look until it is so; False when the time runs out first."""
    try:
        async with asyncio.timeout(timeout_s):
            while not is_so():  # noqa: ASYNC110 - who joins or ends says so to nobody else
                await asyncio.sleep(_LOOK_INTERVAL_S)
    except TimeoutError:
        return False
    return True
