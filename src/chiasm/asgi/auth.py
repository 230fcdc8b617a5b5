"""API keys: on every path but the two that say whether the process is alive and ready."""

import hashlib
import hmac
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from chiasm.asgi.reply import json_reply
from chiasm.errors import AuthenticationError
from chiasm.protocol.openai.errors import encode_error, error_body, error_headers, status_of

OPEN_PATHS = frozenset({"/health", "/ready"})
"""Compared exactly: any other spelling needs a key, also of paths that lead nowhere."""

ANONYMOUS = "anonymous"
"""The tenant of all callers where no keys are configured."""


def tenant_of(api_key: str) -> str:
    """The name of the callers who send this key: the start of its SHA-256."""
    return _tenant_id(_digest(api_key.encode()))


class Authentication:
    """ASGI middleware, outermost, so that nothing about a path can be learnt without a key.

    Sets `scope["tenant"]`: a short hash of the key, or 'anonymous' when no keys are configured.
    """

    def __init__(self, app: ASGIApp, api_keys: Iterable[str], open_paths: frozenset[str] = OPEN_PATHS) -> None:
        self._app = app
        self._open_paths = open_paths
        self._digests = [_digest(key.encode()) for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401 without reading its body."""
        if scope["type"] == "http":
            scope["tenant"] = ANONYMOUS
            if self._digests and scope["path"] not in self._open_paths:
                tenant = self._tenant(scope["headers"])
                if tenant is None:
                    await _refuse(send)
                    return
                scope["tenant"] = tenant
        await self._app(scope, receive, send)

    def _tenant(self, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        given = [value for name, value in headers if name == b"authorization"]
        if len(given) != 1:
            return None
        scheme, _, key = given[0].partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        key = key.strip()
        digest = _digest(key)
        matches = [hmac.compare_digest(digest, known) for known in self._digests]  # all of them, whatever matches
        return _tenant_id(digest) if key and any(matches) else None


def _tenant_id(digest: bytes) -> str:
    return digest.hex()[:16]


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


async def _refuse(send: Send) -> None:
    error = AuthenticationError("No valid API key", hint="Send the header 'Authorization: Bearer KEY'")
    await json_reply(send, status_of(error), encode_error(error_body(error)), error_headers(error))
