"""`/admin/workers`: the worker processes that this server runs, and their replacement."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from chiasm.errors import InvalidRequestError, UnsupportedFeatureError
from chiasm.gateway.routes.json_response import json_response
from chiasm.gateway.state import Gateway
from chiasm.protocol.fleet import Renewable, Replaceable, WorkerProcessState

_SAID = {None: False, "false": False, "true": True}


class ProcessList(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `GET /admin/workers`."""

    workers: tuple[WorkerProcessState, ...]


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

    async def gateway(self, request: Request) -> Response:
        """`GET /admin/gateway`: the process that serves, and whether its successor starts."""
        return json_response(self._replaceable().gateway_process())

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
