"""The ASGI application: which path leads where."""

from collections.abc import Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, ExceptionHandler, Receive, Scope, Send

from chiasm.asgi.auth import OPEN_PATHS
from chiasm.errors import ChiasmError
from chiasm.gateway.access import ADMIN, ANY, INFER, METRICS, POOL, Access, Scopes
from chiasm.gateway.audit import Audited
from chiasm.gateway.console.routes import console_paths, console_routes
from chiasm.gateway.exchange.endpoint import GenerationEndpoint
from chiasm.gateway.openai.chat import ChatDialect
from chiasm.gateway.openai.completions import CompletionDialect
from chiasm.gateway.policy import ServerPolicy, policy_of
from chiasm.gateway.pooling.routes import pooling_app_endpoints
from chiasm.gateway.routes.adapters import AdapterRoutes
from chiasm.gateway.routes.admin import ADMIN_PREFIX, AdminRoutes
from chiasm.gateway.routes.debug import DebugRoutes
from chiasm.gateway.routes.health import HealthRoutes
from chiasm.gateway.routes.json_response import json_response
from chiasm.gateway.routes.models import ModelRoutes
from chiasm.gateway.routes.openapi import openapi
from chiasm.gateway.routes.operators import OperatorRoutes
from chiasm.gateway.routes.processes import ProcessRoutes
from chiasm.gateway.routes.state import StateRoutes
from chiasm.gateway.state import Gateway, Ingest
from chiasm.protocol.openai.errors import error_body, error_headers, fault_body, status_of
from chiasm.protocol.worker import Worker
from chiasm.settings import AdapterSettings, GatewaySettings, PoolingSettings, Settings
from chiasm.sharing.link import Link

_POOLING = PoolingSettings()
_NO_ADAPTERS = AdapterSettings()
_FOR_METRICS = ("/metrics", "/debug/state", "/debug/memory", "/debug/policy")


class _Application(Starlette):
    """Starlette, with a short way to the endpoints that answer all their own errors."""

    def __init__(self, direct: dict[str, ASGIApp], admin: ASGIApp | None, **options: Any) -> None:
        super().__init__(**options)
        self._direct = direct
        self._admin = admin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._admin is not None and scope["type"] == "http" and scope["path"].startswith(ADMIN_PREFIX):
            await self._admin(scope, receive, send)
            return
        direct = self._direct.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        await (super().__call__ if direct is None else direct)(scope, receive, send)


def create_app(
    worker: Worker,
    ingest: Ingest,
    settings: GatewaySettings,
    pooling: PoolingSettings = _POOLING,
    policy: ServerPolicy | None = None,
    adapters: AdapterSettings = _NO_ADAPTERS,
    link: Link | None = None,
) -> Starlette:
    """Build the application. The caller owns worker and ingest and closes them after the server has stopped.

    `policy` is what `/debug/policy` and `/admin/retention` say; without it, what follows from the gateway's section.
    `link` leads to what several gateways share; without it, this one is alone.

    `app.state.gateway` is the `chiasm.gateway.state.Gateway`; its `drain` begins a graceful stop.
    """
    gateway = Gateway(worker, ingest, settings, adapters, link)
    policy = policy or policy_of(Settings(gateway=settings))
    generation: dict[str, ASGIApp] = {
        "/v1/chat/completions": GenerationEndpoint(gateway, ChatDialect()),
        "/v1/completions": GenerationEndpoint(gateway, CompletionDialect()),
    }
    endpoints: dict[str, ASGIApp] = {**generation, **pooling_app_endpoints(gateway, pooling)}
    scopes: dict[str, Scopes] = {path: INFER if path in generation else POOL for path in endpoints}
    app = _Application(
        {path: Access(endpoint, gateway.tenants, scopes[path]) for path, endpoint in endpoints.items()},
        _admin_app(gateway, policy) if gateway.tenants.has_admins else None,
        routes=[*(Route(path, end, methods=["POST"]) for path, end in endpoints.items()), *_routes(gateway, policy)],
        middleware=[
            Middleware(
                Access,
                tenants=gateway.tenants,
                scopes=ANY,
                paths=scopes | dict.fromkeys(_FOR_METRICS, METRICS),
                open_paths=OPEN_PATHS | console_paths(),
            )
        ],
        exception_handlers=_HANDLERS,
    )
    app.router.redirect_slashes = False  # a path has one spelling
    app.state.gateway = gateway
    return app


def _admin_app(gateway: Gateway, policy: ServerPolicy) -> ASGIApp:
    """What answers below `/admin/`, to keys that are for it."""
    admin, operators = AdminRoutes(gateway), OperatorRoutes(gateway, policy.kept)
    adapters, processes = AdapterRoutes(gateway), ProcessRoutes(gateway)
    routes = [
        Route("/admin/tenants", operators.tenants),
        Route("/admin/keys", operators.keys),
        Route("/admin/receipts", operators.receipts),
        Route("/admin/retention", operators.retention),
        Route("/admin/adapters", adapters.list),
        Route("/admin/adapters", adapters.load, methods=["POST"]),
        Route("/admin/adapters/{name}", adapters.unload, methods=["DELETE"]),
        Route("/admin/gateway", processes.gateway),
        Route("/admin/gateway/restart", processes.replace, methods=["POST"]),
        Route("/admin/workers", processes.list),
        Route("/admin/workers/{name}/restart", processes.restart, methods=["POST"]),
        Route("/admin/workers/{name}/drain", processes.drain, methods=["POST", "DELETE"]),
        Route("/admin/media/{sha256}", admin.medium, methods=["DELETE"]),
        Route("/admin/tenants/{tenant}/cache", admin.tenant, methods=["DELETE"]),
    ]
    app = Starlette(routes=routes, exception_handlers=_HANDLERS)
    app.router.redirect_slashes = False
    return Access(Audited(app, gateway.audit), gateway.tenants, ADMIN)


def _routes(gateway: Gateway, policy: ServerPolicy) -> list[Route]:
    models, health, debug = ModelRoutes(gateway), HealthRoutes(gateway), DebugRoutes(gateway)
    state = StateRoutes(gateway, policy)
    return [
        Route("/v1/models", models.list),
        Route("/v1/models/{id:path}", models.entry),
        Route("/health", health.health),
        Route("/ready", health.ready),
        Route("/version", health.version),
        Route("/metrics", health.metrics),
        Route("/debug/receipts", debug.receipts),
        Route("/debug/receipts/{id}", debug.receipt),
        Route("/debug/state", state.state),
        Route("/debug/memory", state.memory),
        Route("/debug/policy", state.policy),
        Route("/openapi.json", openapi),
        *console_routes(),
    ]


async def _http_fault(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = {404: "No such path", 405: "This path takes another method"}.get(error.status_code, error.detail)
    headers = dict(error.headers) if error.headers else None
    return json_response(fault_body(error.status_code, message, _hint(request)), error.status_code, headers)


def _hint(request: Request) -> str:
    """Where to look further. Nobody gets this far without a key where keys are asked for."""
    if isinstance(request.app, _Application) and request.url.path.startswith(ADMIN_PREFIX):
        return "The server has no operators: set gateway.admin_keys, or keys with the scope admin in gateway.keys_file"
    return "GET /openapi.json"


async def _error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ChiasmError)
    headers = {name.decode(): value.decode() for name, value in error_headers(error)}
    return json_response(error_body(error), status_of(error), headers)


async def _internal(_request: Request, _error: Exception) -> Response:
    return json_response(error_body(ChiasmError("Internal error")), 500)


_HANDLERS: Mapping[Any, ExceptionHandler] = {HTTPException: _http_fault, ChiasmError: _error, Exception: _internal}
