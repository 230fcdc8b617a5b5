"""`/admin/adapters`: what operators load, list and unload."""

import asyncio
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from chiasm.asgi.limits import RequestLimits, read_body
from chiasm.errors import ChiasmError
from chiasm.gateway.adapters import LoadedAdapter
from chiasm.gateway.routes.json_response import json_response
from chiasm.gateway.state import Gateway
from chiasm.protocol.adapters import AdapterName
from chiasm.protocol.openai.faults import request_fault

_MAX_BODY_BYTES = 16 * 1024


class AdapterBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /admin/adapters`: the name for clients, and the adapter's folder on the server."""

    name: AdapterName
    path: Annotated[str, Meta(min_length=1, max_length=4096)]


class AdapterView(msgspec.Struct, frozen=True, kw_only=True):
    """A loaded adapter, as an operator sees it."""

    name: str
    parent: str
    revision: str
    path: str
    rank: int
    targets: tuple[str, ...]
    num_bytes: int
    loaded_at_unix_s: float


class AdapterList(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `GET /admin/adapters`."""

    adapters: list[AdapterView]


class AdapterRoutes:
    """What is asked below `/admin/adapters`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def list(self, request: Request) -> Response:
        """`GET /admin/adapters`."""
        return json_response(AdapterList(adapters=[self._view(one) for one in self._gateway.adapters.all()]))

    async def load(self, request: Request) -> Response:
        """`POST /admin/adapters`. Raises what `Adapters.load` raises."""
        async with RequestLimits(self._gateway.settings.request_timeout_s):
            data = await read_body(request.receive, request.scope["headers"], _MAX_BODY_BYTES, "the limit of this call")
        try:
            body = msgspec.json.decode(data, type=AdapterBody)
        except msgspec.DecodeError as error:
            raise request_fault(error, body=data) from error
        await self._write_down(request, "load_adapter", {"adapter": body.name})
        loaded = await self._gateway.adapters.load(body.name, body.path)
        revision = loaded.info.ref.revision
        await self._write_down(request, "loaded_adapter", {"adapter": body.name, "revision": revision})
        return json_response(self._view(loaded))

    async def unload(self, request: Request) -> Response:
        """`DELETE /admin/adapters/{name}`. Raises `ModelNotFoundError`."""
        info = await self._gateway.adapters.unload(request.path_params["name"])
        return json_response({"unloaded": info.ref.name, "revision": info.ref.revision})

    async def _write_down(self, request: Request, act: str, what: dict[str, str]) -> None:
        """Which adapter is meant is in the body, which the log of all acts does not have."""
        caller = request.scope["caller"]
        try:
            await asyncio.to_thread(
                self._gateway.audit.record, act, {"key": caller.key_id, "tenant": caller.tenant} | what
            )
        except OSError as error:
            raise ChiasmError("The audit file cannot be written", hint="See gateway.audit_file") from error

    def _view(self, loaded: LoadedAdapter) -> AdapterView:
        info = loaded.info
        return AdapterView(
            name=info.ref.name,
            parent=self._gateway.worker.info.model,
            revision=info.ref.revision,
            path=info.ref.directory,
            rank=info.rank,
            targets=info.targets,
            num_bytes=info.num_bytes,
            loaded_at_unix_s=loaded.loaded_at_unix_s,
        )
