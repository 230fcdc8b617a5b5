"""The way in, the same for every endpoint: a seat to serve the request from, or an answer that says why not."""

from collections.abc import Awaitable, Callable

from starlette.types import Scope, Send

from chiasm.asgi.admission import Seat
from chiasm.errors import ChiasmError, OverloadedError, ShuttingDownError
from chiasm.gateway.state import Gateway
from chiasm.observability.logs import LOGGER


async def let_in(
    gateway: Gateway, endpoint: str, request_id: str, scope: Scope, send: Send, serve: Callable[[Seat], Awaitable[None]]
) -> None:
    """Serve a request that is let in. `serve` answers it whatever happens; what it raises is passed on."""
    refusal: ChiasmError
    try:
        await gateway.cover(scope)
        seat = gateway.open(scope)
        gateway.admission.enter(seat)
    except (OverloadedError, ShuttingDownError) as error:
        refusal = error
    except Exception:  # noqa: BLE001 - the border: no fault may end a request without an answer
        LOGGER.exception("request=%s failed before it was let in", request_id)
        refusal = ChiasmError("Internal error", hint="The server's log has the details under the request's id")
    else:
        try:
            await serve(seat)
        finally:
            gateway.admission.leave(seat)
        return
    await gateway.refusals.answer(endpoint, scope["tenant"], refusal, request_id, send)
