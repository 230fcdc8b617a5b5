"""Receipts of a tenant's recent requests, for people and the console. They hold times and counts, no content."""

from starlette.requests import Request
from starlette.responses import Response

from chiasm.errors import InvalidRequestError
from chiasm.gateway.routes.json_response import json_response
from chiasm.gateway.state import Gateway
from chiasm.protocol.openai.errors import fault_body

_DEFAULT_LIMIT = 50


class DebugRoutes:
    """`/debug/receipts`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def receipts(self, request: Request) -> Response:
        """`GET /debug/receipts?limit=N`: newest first."""
        limit = limit_of(request, self._gateway.settings.max_receipts)
        return json_response({"receipts": self._gateway.receipts.latest(limit, request.scope["tenant"])})

    async def receipt(self, request: Request) -> Response:
        """`GET /debug/receipts/{id}`."""
        receipt = self._gateway.receipts.get(request.path_params["id"], request.scope["tenant"])
        if receipt is None:
            hint = f"The last {self._gateway.settings.max_receipts} requests are kept (gateway.max_receipts)"
            return json_response(fault_body(404, "No receipt of this request", hint), 404)
        return json_response(receipt)


def limit_of(request: Request, most: int) -> int:
    """How many receipts are asked for. Raises `InvalidRequestError`."""
    text = request.query_params.get("limit", str(min(most, _DEFAULT_LIMIT)))
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) <= most):
        raise InvalidRequestError(f"limit is a number from 1 to {most}")
    return int(text)
