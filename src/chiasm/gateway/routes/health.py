"""Is the process alive, does it take requests, what is it, what has it counted."""

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response

from chiasm import __version__
from chiasm.gateway.routes.json_response import json_response
from chiasm.gateway.state import Gateway
from chiasm.protocol.contract import CONTRACT_VERSION


class HealthRoutes:
    """For orchestrators and monitoring."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def health(self, request: Request) -> Response:
        """`GET /health`: 200 while the engine lives; 503 means restart me. Without the shared store it is degraded."""
        if not self._gateway.worker.stats().is_healthy:
            return json_response({"status": "engine_dead"}, 503)
        if self._gateway.link.is_degraded:
            return json_response({"status": "degraded", "reason": "the shared store does not answer"})
        return json_response({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """`GET /ready`: 200 while new requests are taken; 503 means send them elsewhere."""
        if self._gateway.is_ready:
            return json_response({"status": "ready"})
        return json_response({"status": "draining" if self._gateway.admission.is_closed else "engine_dead"}, 503)

    async def version(self, request: Request) -> Response:
        """`GET /version`."""
        info = self._gateway.worker.info
        return json_response({"version": __version__, "contract": CONTRACT_VERSION, "model": info.model})

    async def metrics(self, request: Request) -> Response:
        """`GET /metrics`, in Prometheus' text form."""
        await self._gateway.weigh()
        return Response(generate_latest(self._gateway.metrics.registry), media_type=CONTENT_TYPE_LATEST)
