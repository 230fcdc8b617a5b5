"""API keys: on every path but the two that say whether the process is alive and ready."""

from collections.abc import Callable, Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from chiasm.asgi.reply import json_reply
from chiasm.errors import AuthenticationError, ChiasmError
from chiasm.protocol.openai.errors import encode_error, error_body, error_headers, status_of
from chiasm.tenancy.keys import Caller, KeyRing, callers_of_settings

OPEN_PATHS = frozenset({"/health", "/ready"})
"""Compared exactly: any other spelling needs a key, also of paths that lead nowhere."""


class Authentication:
    """ASGI middleware, outermost, so that nothing about a path can be learnt without a key."""

    def __init__(self, app: ASGIApp, api_keys: Iterable[str], open_paths: frozenset[str] = OPEN_PATHS) -> None:
        self._app = app
        self._open_paths = open_paths
        self._keys = KeyRing(callers_of_settings(api_keys))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401 without reading its body."""
        is_guarded = scope["type"] == "http" and len(self._keys) and scope["path"] not in self._open_paths
        if is_guarded and caller_of(scope["headers"], self._keys.find) is None:
            await refuse(send, no_valid_key())
            return
        await self._app(scope, receive, send)


def caller_of(headers: Iterable[tuple[bytes, bytes]], find: Callable[[bytes], Caller | None]) -> Caller | None:
    """Who sends exactly one bearer key that `find` knows."""
    given = [value for name, value in headers if name == b"authorization"]
    if len(given) != 1:
        return None
    scheme, _, key = given[0].partition(b" ")
    return find(key.strip()) if scheme.lower() == b"bearer" else None


def no_valid_key() -> AuthenticationError:
    """The same words, whatever was sent."""
    return AuthenticationError("No valid API key", hint="Send the header 'Authorization: Bearer KEY'")


async def refuse(send: Send, error: ChiasmError) -> None:
    """Answer without having read the body."""
    await json_reply(send, status_of(error), encode_error(error_body(error)), error_headers(error))
