"""The state of everything behind the gateway, in one answer: what the console shows."""

import time
from collections.abc import Mapping

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from chiasm import __version__
from chiasm.gateway.policy import ServerPolicy
from chiasm.gateway.routes.json_response import json_response
from chiasm.gateway.state import Gateway
from chiasm.observability.memory import WorkerMemory
from chiasm.protocol.fleet import Fleetlike, FleetState, MemberState
from chiasm.protocol.worker import WorkerInfo


class RequestsState(msgspec.Struct, frozen=True, kw_only=True):
    """Requests now, and how those that have ended did."""

    num_open: int
    num_running: int
    num_queued: int
    outcomes: Mapping[str, float]


class ServerState(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `GET /debug/state`. `totals` are the counters of `/metrics` without their prefix, summed over labels."""

    version: str
    uptime_s: float
    is_ready: bool
    model: WorkerInfo
    requests: RequestsState
    totals: Mapping[str, float]
    worker_totals: Mapping[str, float]
    fleet: FleetState


class MemoryState(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `GET /debug/memory`: one entry per process of the server."""

    workers: tuple[WorkerMemory, ...]


class StateRoutes:
    """What is below `/debug/` besides receipts."""

    def __init__(self, gateway: Gateway, policy: ServerPolicy) -> None:
        self._gateway = gateway
        self._policy = policy
        self._started_s = time.monotonic()

    async def state(self, request: Request) -> Response:
        """`GET /debug/state`: counts, times and names; no content."""
        gateway = self._gateway
        admission, worker = gateway.admission, gateway.worker
        return json_response(
            ServerState(
                version=__version__,
                uptime_s=time.monotonic() - self._started_s,
                is_ready=gateway.is_ready,
                model=worker.info,
                requests=RequestsState(
                    num_open=admission.num_open,
                    num_running=admission.num_running,
                    num_queued=admission.num_queued,
                    outcomes=gateway.metrics.outcomes(),
                ),
                totals=gateway.metrics.totals(),
                worker_totals=worker.stats().totals,
                fleet=worker.fleet_state() if isinstance(worker, Fleetlike) else self._alone(),
            ),
            headers={"Cache-Control": "no-store"},
        )

    async def memory(self, request: Request) -> Response:
        """`GET /debug/memory`: what each process takes, now."""
        state = MemoryState(workers=await self._gateway.weigh())
        return json_response(state, headers={"Cache-Control": "no-store"})

    async def policy(self, request: Request) -> Response:
        """`GET /debug/policy`: limits, rules and what is kept."""
        return json_response(self._policy)

    def _alone(self) -> FleetState:
        """A worker in this process, as a fleet of one."""
        worker = self._gateway.worker
        stats, info = worker.stats(), worker.info
        member = MemberState(
            name=info.name,
            roles=info.roles,
            state="ready" if stats.is_healthy else "down",
            device=info.device,
            num_decoding=stats.num_running,
            num_prefilling=stats.num_waiting,
            stats=stats,
        )
        return FleetState(topology="local", policy="", members=(member,))
