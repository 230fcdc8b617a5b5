"""The calls by which a worker loads and unloads adapters. Only gateways know its address and token."""

from collections.abc import Awaitable, Callable

import msgspec
from starlette.types import Receive, Scope, Send

from chiasm.asgi.limits import RequestLimits, read_body
from chiasm.asgi.reply import json_reply
from chiasm.errors import ChiasmError
from chiasm.observability.logs import LOGGER
from chiasm.protocol.adapters import LOAD_PATH, Adaptable, decode_load, decode_ref
from chiasm.protocol.openai.errors import error_headers, status_of
from chiasm.protocol.wire import encode_fault

_MAX_BODY_BYTES = 16 * 1024
_TIMEOUT_S = 120.0


async def serve_adapter_call(worker: Adaptable, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one call to `LOAD_PATH` or `UNLOAD_PATH`."""
    serve = _load if scope["path"] == LOAD_PATH else _unload
    try:
        await json_reply(send, 200, await _answer(serve, worker, scope, receive), [])
    except ChiasmError as error:
        await json_reply(send, status_of(error), encode_fault(error), error_headers(error))
    except Exception:  # noqa: BLE001 - the border: no fault may end a call without an answer
        LOGGER.exception("A call about an adapter failed inside the worker's server")
        fault = ChiasmError("Internal error", hint="The worker's log has the details")
        await json_reply(send, status_of(fault), encode_fault(fault), [])


Serve = Callable[[Adaptable, bytes, float], Awaitable[bytes]]


async def _answer(serve: Serve, worker: Adaptable, scope: Scope, receive: Receive) -> bytes:
    async with RequestLimits(_TIMEOUT_S) as limits:
        body = await read_body(receive, scope["headers"], _MAX_BODY_BYTES, "the worker's limit on such calls")
        return await serve(worker, body, limits.remaining_s)


async def _load(worker: Adaptable, body: bytes, timeout_s: float) -> bytes:
    info = await worker.load_adapter(decode_load(body), timeout_s)
    LOGGER.info("Adapter '%s' is loaded, revision %s", info.ref.name, info.ref.revision)
    return msgspec.json.encode(info)


async def _unload(worker: Adaptable, body: bytes, timeout_s: float) -> bytes:
    ref = decode_ref(body)
    await worker.unload_adapter(ref, timeout_s)
    LOGGER.info("Adapter '%s' is unloaded", ref.name)
    return b"{}"
