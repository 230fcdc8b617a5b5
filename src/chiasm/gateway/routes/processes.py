"""`/admin/workers`: the worker processes that this server runs, and their replacement."""

import asyncio
from contextlib import suppress

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from chiasm.errors import InvalidRequestError, UnsupportedFeatureError
from chiasm.gateway.routes.json_response import json_response
from chiasm.gateway.state import Gateway
from chiasm.protocol.deletion import Deleted
from chiasm.protocol.fleet import Renewable, Replaceable, WorkerProcessState
from chiasm.sharing.acts import DrainAct

_WAIT_S = 20.0
_LOOK_INTERVAL_S = 0.1
_SAID = {None: False, "false": False, "true": True}


class ProcessList(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `GET /admin/workers`."""

    workers: tuple[WorkerProcessState, ...]


class DrainReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a drain. Of `gateways`, those with an `error` have not said that they know."""

    worker: str
    is_draining: bool
    gateways: tuple[Deleted, ...]


class ProcessRoutes:
    """What is asked below `/admin/workers`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def list(self, request: Request) -> Response:
        """`GET /admin/workers`; none where this server runs no processes."""
        renewable = self._gateway.renewable
        return json_response(ProcessList(workers=renewable.processes() if renewable is not None else ()))

    async def restart(self, request: Request) -> Response:
        """`POST /admin/workers/{name}/restart?alone=true`: answers when the successor does. See `Renewable.renew`."""
        said = request.query_params.get("alone")
        if said not in _SAID:
            raise InvalidRequestError("alone is 'true' or 'false'")
        return json_response(await self._renewable().renew(request.path_params["name"], alone=_SAID[said]))

    async def drain(self, request: Request) -> Response:
        """`POST /admin/workers/{name}/drain`: at all gateways, no more work for it; `DELETE`: work again."""
        name, is_over = request.path_params["name"], request.method == "DELETE"
        if not self._gateway.peers.drain(name, is_over=is_over):
            raise InvalidRequestError(f"'{name}' is no worker of this fleet", hint="GET /debug/state names them")
        gateways = await self._gateway.peers.tell(DrainAct(name, is_over=is_over))
        return json_response(DrainReport(worker=name, is_draining=not is_over, gateways=gateways))

    async def gateway(self, request: Request) -> Response:
        """`GET /admin/gateway?while=starting`: the process that serves, once its state is another, or after 20 s."""
        replaceable, state = self._replaceable(), request.query_params.get("while")
        with suppress(TimeoutError):
            async with asyncio.timeout(_WAIT_S):
                while replaceable.gateway_process().state == state:  # noqa: ASYNC110 - a keeper changes it, too
                    await asyncio.sleep(_LOOK_INTERVAL_S)
        return json_response(replaceable.gateway_process())

    async def replace(self, request: Request) -> Response:
        """`POST /admin/gateway/restart`: answers at once; `GET /admin/gateway` says when another process serves."""
        replaceable = self._replaceable()
        replaceable.replace()
        return json_response(replaceable.gateway_process())

    def _replaceable(self) -> Replaceable:
        if self._gateway.replaceable is None:
            raise UnsupportedFeatureError(
                "This server is a part of another program, and cannot be replaced",
                hint="`chiasm serve` runs one that can",
            )
        return self._gateway.replaceable

    def _renewable(self) -> Renewable:
        if self._gateway.renewable is None:
            raise UnsupportedFeatureError(
                "This server runs no worker processes", hint="They are there with --topology agg, auto, e-pd or e-p-d"
            )
        return self._gateway.renewable
