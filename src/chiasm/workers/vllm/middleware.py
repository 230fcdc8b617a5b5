"""Reads requests to `/pooling` with a processor's data before vLLM does: `vllm serve --middleware`.

vLLM 0.32 calls a processor on its event loop, where nothing may be waited for. In front of it, the body is read within
limits, the processor runs on threads, and pictures are fetched, checked and decoded by the media room. vLLM then gets
the request without its data, and the processor inside it finds what has been read in the task's context.
Settings are Chiasm's (`gateway.*`, `media.*`), from the environment; with `gateway.api_keys` every path asks for a key.
"""

import asyncio

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chiasm.asgi.admission import Admission
from chiasm.asgi.auth import Authentication
from chiasm.asgi.limits import RequestLimits, read_body
from chiasm.asgi.reply import json_reply
from chiasm.errors import ChiasmError, InvalidRequestError, PluginError
from chiasm.observability.logs import LOGGER
from chiasm.protocol.openai.errors import encode_error, error_body, error_headers, status_of
from chiasm.settings import GatewaySettings, MediaSettings, resolve
from chiasm.workers.vllm.ahead import READ_AHEAD, Serving, read_ahead, serving
from chiasm.workers.vllm.pictures import PictureRoom
from chiasm.workers.vllm.requests import RequestUnderWay

_PATH, _DATA = "/pooling", "data"


class ProcessorMiddleware:
    """ASGI middleware that vLLM makes by name."""

    def __init__(self, app: ASGIApp) -> None:
        """Read settings. Raises `SettingError`."""
        settings = resolve().settings
        self._serve = Authentication(ReadAhead(app, settings.gateway, settings.media), settings.gateway.api_keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection's request."""
        await self._serve(scope, receive, send)


class ReadAhead:
    """Passes everything on; a request for the processor once it has been read, or has been refused here."""

    def __init__(self, app: ASGIApp, settings: GatewaySettings, media: MediaSettings) -> None:
        self._app = app
        self._settings = settings
        self._media = media
        self._admission = Admission(settings.max_running_requests, settings.max_queued_requests)
        self._room: PictureRoom | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; or the server's whole life, at whose end the media room is closed."""
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
            return
        found = serving()
        is_ours = scope["type"] == "http" and scope["method"] == "POST" and _path_of(scope) == _PATH
        if found is None or not is_ours:
            await self._app(scope, receive, send)
            return
        try:
            with self._admission.open():
                body, request = await self._read(found, scope, receive)
        except ChiasmError as error:
            await _refuse(send, error)
            return
        except Exception:  # noqa: BLE001 - the border: no fault may end a request without an answer
            LOGGER.exception("A request failed before vLLM got it")
            await _refuse(send, ChiasmError("Internal error", hint="The server's log has the details"))
            return
        token = READ_AHEAD.set(request)
        try:
            await self._app(_with_length(scope, len(body)), _Replayed(body, receive), send)
        finally:
            READ_AHEAD.reset(token)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        finally:
            if self._room is not None:
                await self._room.aclose()

    async def _read(self, found: Serving, scope: Scope, receive: Receive) -> tuple[bytes, RequestUnderWay | None]:
        """The body that vLLM is to see, and the request that was read of it; None where it has no data."""
        async with RequestLimits(self._settings.request_timeout_s) as limits:
            body = await read_body(receive, scope["headers"], self._settings.max_body_bytes, "gateway.max_body_bytes")
            fields = _fields_of(body)
            if fields is None or _DATA not in fields:
                return body, None
            limits.watch(receive, scope)
            data = await asyncio.to_thread(_decoded, fields[_DATA])
            if self._room is None:
                self._room = PictureRoom(self._media)
            request = await read_ahead(found, data, self._room, limits.remaining_s)
        return msgspec.json.encode(fields | {_DATA: None}), request


class _Replayed:
    """ASGI's `receive` for a body that has been read."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


def _fields_of(body: bytes) -> dict[str, msgspec.Raw] | None:
    """The body's fields, undecoded; None for what vLLM should complain about itself."""
    try:
        return msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return None


def _decoded(data: msgspec.Raw) -> object:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequestError(f"The body's data cannot be read: {str(error)[:200]}") from error


def _path_of(scope: Scope) -> str:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _with_length(scope: Scope, num_bytes: int) -> Scope:
    others = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
    return {**scope, "headers": [*others, (b"content-length", str(num_bytes).encode())]}


async def _refuse(send: Send, error: ChiasmError) -> None:
    if isinstance(error, PluginError):
        LOGGER.error("An IO processor failed", exc_info=error.__cause__)
    error.param = error.param or "/data"
    await json_reply(send, status_of(error), encode_error(error_body(error)), error_headers(error))
