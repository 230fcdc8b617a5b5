"""The API as an OpenAPI document, made from the types that check it."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from chiasm import __version__
from chiasm.gateway.policy import ServerPolicy
from chiasm.gateway.pooling.routes import BODIES
from chiasm.gateway.routes.json_response import json_response
from chiasm.gateway.routes.state import MemoryState, ServerState
from chiasm.observability.receipt import Receipt
from chiasm.protocol.openai.chat import ChatCompletionRequest
from chiasm.protocol.openai.completions import CompletionRequest
from chiasm.protocol.openai.models import ErrorBody, ModelCard, ModelList
from chiasm.protocol.openai.responses import ChatChunk, ChatCompletion, Completion

_REF = "#/components/schemas/{name}"
_POSTS: dict[str, tuple[type, ...]] = {
    "/v1/chat/completions": (ChatCompletionRequest, ChatCompletion, ChatChunk),
    "/v1/completions": (CompletionRequest, Completion, Completion),
    **BODIES,
}
"""Path -> request, whole answer, and where there are streams the type of their events."""
_GETS: dict[str, tuple[str, type | None]] = {
    "/v1/models": ("Models served here", ModelList),
    "/v1/models/{id}": ("One model", ModelCard),
    "/health": ("Whether the engine lives", None),
    "/ready": ("Whether new requests are taken", None),
    "/version": ("Versions", None),
    "/metrics": ("Prometheus metrics", None),
    "/debug/receipts": ("Receipts of recent requests", None),
    "/debug/receipts/{id}": ("Receipt of one request", Receipt),
    "/debug/state": ("State of the fleet, requests and counters", ServerState),
    "/debug/memory": ("What each process of the server takes of memory", MemoryState),
    "/debug/policy": ("Limits, rules and what is kept", ServerPolicy),
    "/openapi.json": ("This document", None),
}
DESCRIBED_PATHS = frozenset(_POSTS) | frozenset(_GETS)


async def openapi(_request: Request) -> Response:
    """`GET /openapi.json`."""
    return json_response(document())


def document() -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    types = [t for row in _POSTS.values() for t in row] + [kind for _, kind in _GETS.values() if kind] + [ErrorBody]
    unique = list(dict.fromkeys(types))
    schemas, components = msgspec.json.schema_components(unique, ref_template=_REF)
    schema_of = dict(zip(unique, schemas, strict=True))
    paths: dict[str, Any] = {path: _post(row, schema_of) for path, row in _POSTS.items()}
    for path, (summary, kind) in _GETS.items():
        content = {"application/json": {"schema": schema_of[kind]}} if kind else {}
        operation = {"summary": summary, "responses": _responses(content, schema_of)}
        paths[path] = {"get": operation | ({"parameters": [_ID]} if "{id}" in path else {})}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Chiasm", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}, {}],
    }


_ID = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}


def _post(row: tuple[type, ...], schema_of: dict[type, Any]) -> dict[str, Any]:
    request, *answers = (schema_of[kind] for kind in row)
    forms = ("application/json", "text/event-stream")
    content = {form: {"schema": answer} for form, answer in zip(forms, answers, strict=False)}
    body = {"required": True, "content": {"application/json": {"schema": request}}}
    return {"post": {"requestBody": body, "responses": _responses(content, schema_of)}}


def _responses(content: dict[str, Any], schema_of: dict[type, Any]) -> dict[str, Any]:
    failure = {"description": "Error", "content": {"application/json": {"schema": schema_of[ErrorBody]}}}
    return {"200": {"description": "Success"} | ({"content": content} if content else {}), "default": failure}
