"""Errors as bodies, and back to the class that was raised."""

import msgspec

from chiasm.errors import (
    AuthenticationError,
    ChiasmError,
    EngineDeadError,
    EngineError,
    EngineStepError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    RequestTooLargeError,
    ShuttingDownError,
    error_class,
)
from chiasm.protocol.openai.errors import STATUS, error_body

_RAISED = {"invalid_request": InvalidRequestError, "overloaded": OverloadedError}
"""Codes that a general class has, too: the class that is meant."""

_BY_STATUS: dict[int, type[ChiasmError]] = {
    400: InvalidRequestError,
    401: AuthenticationError,
    404: ModelNotFoundError,
    413: RequestTooLargeError,
    422: InvalidRequestError,
    429: OverloadedError,
    500: EngineStepError,
    503: ShuttingDownError,
}
"""What the statuses of other servers mean, which have no codes of ours."""

_DEAD = "EngineCore encountered"
"""How vLLM begins the message of an engine that has died; its other messages are about one request."""

_MAX_MESSAGE_CHARACTERS = 2000


class FaultDetail(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's error, with our hint, the item it is about, and when to come back. Other servers' codes are numbers."""

    message: str
    type: str = ""
    param: str | None = None
    code: str | int | None = None
    hint: str | None = None
    item: int | None = None
    retry_after_s: int | None = None


class FaultBody(msgspec.Struct, frozen=True):
    """Body of a response that is not 2xx, and of an error inside a stream."""

    error: FaultDetail


def encode_fault(error: ChiasmError) -> bytes:
    """The body of an error."""
    detail = FaultDetail(
        **msgspec.structs.asdict(error_body(error).error),
        item=error.item,
        retry_after_s=error.retry_after_s if isinstance(error, OverloadedError) else None,
    )
    return msgspec.json.encode(FaultBody(detail))


def decode_fault(status: int, body: bytes) -> ChiasmError:
    """Rebuild an error from a response's status and body, whatever they are."""
    try:
        return rebuilt(msgspec.json.decode(body, type=FaultBody).error, status)
    except (msgspec.DecodeError, RecursionError):
        return _BY_STATUS.get(status, EngineError)(f"The worker answered with status {status} and no error of ours")


def rebuilt(detail: FaultDetail, status: int = 500) -> ChiasmError:
    """The error that `detail` tells of. `status` counts where its code is none of ours."""
    message = detail.message[:_MAX_MESSAGE_CHARACTERS]
    if isinstance(detail.code, str) and detail.code in STATUS:
        kind: type[ChiasmError] = _RAISED.get(detail.code, error_class(detail.code))
    elif message.startswith(_DEAD):
        kind = EngineDeadError
    else:
        kind = _BY_STATUS.get(detail.code if isinstance(detail.code, int) else status, EngineError)
    if issubclass(kind, OverloadedError):
        return kind(message, retry_after_s=detail.retry_after_s or 1, hint=detail.hint)
    return kind(message, hint=detail.hint, param=detail.param, item=detail.item)
