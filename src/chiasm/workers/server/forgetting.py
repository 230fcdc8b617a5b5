"""The call that deletes from a worker's caches."""

import msgspec
from starlette.types import Receive, Scope, Send

from chiasm.asgi.limits import RequestLimits, read_body
from chiasm.asgi.reply import json_reply
from chiasm.errors import ChiasmError
from chiasm.observability.logs import LOGGER
from chiasm.protocol.deletion import Forgetful, decode_deletion
from chiasm.protocol.openai.errors import error_headers, status_of
from chiasm.protocol.wire import encode_fault

_MAX_BODY_BYTES = 16 * 1024
_TIMEOUT_S = 30.0


async def serve_deletion(worker: Forgetful, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one such call, also while the worker drains."""
    try:
        async with RequestLimits(_TIMEOUT_S) as limits:
            body = await read_body(receive, scope["headers"], _MAX_BODY_BYTES, "the worker's limit on deletions")
            deleted = await worker.forget(decode_deletion(body), limits.remaining_s)
        LOGGER.info("Deleted: %s", deleted)
        await json_reply(send, 200, msgspec.json.encode(deleted), [])
    except ChiasmError as error:
        await json_reply(send, status_of(error), encode_fault(error), error_headers(error))
    except Exception:  # noqa: BLE001 - the border: no fault may end a call without an answer
        LOGGER.exception("A deletion failed inside the worker's server")
        fault = ChiasmError("Internal error", hint="The worker's log has the details")
        await json_reply(send, status_of(fault), encode_fault(fault), [])
