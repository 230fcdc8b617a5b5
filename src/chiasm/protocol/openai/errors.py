"""The one place where an error gets an HTTP status."""

import msgspec

from chiasm.errors import ChiasmError, OverloadedError
from chiasm.protocol.openai.models import ErrorBody, ErrorDetail

STATUS = {
    "internal_error": 500,
    "invalid_settings": 500,
    "unknown_setting": 500,
    "invalid_setting": 500,
    "missing_extra": 500,
    "invalid_request": 400,
    "request_too_large": 413,
    "body_timeout": 408,
    "unsupported_feature": 400,
    "invalid_api_key": 401,
    "permission_denied": 403,
    "model_not_found": 404,
    "adapter_refused": 400,
    "context_length_exceeded": 400,
    "media_error": 400,
    "media_fetch_failed": 400,
    "media_refused": 400,
    "media_too_large": 413,
    "media_undecodable": 400,
    "media_unsupported": 400,
    "overloaded": 429,
    "rate_limited": 429,
    "shutting_down": 503,
    "deadline_exceeded": 504,
    "transfer_failed": 503,
    "embedding_unavailable": 503,
    "layout_mismatch": 500,
    "checksum_mismatch": 503,
    "engine_error": 500,
    "engine_start_failed": 500,
    "contract_version_mismatch": 500,
    "unsupported_model": 500,
    "engine_step_failed": 500,
    "engine_dead": 503,
    "request_quarantined": 500,
    "deletion_incomplete": 502,
    "plugin_failed": 500,
    "cancelled": 499,
}
"""Code -> HTTP status. 499, as other servers have it: the client closed the connection, nobody reads the answer."""

HTTP_FAULTS = {404: "not_found", 405: "method_not_allowed"}
"""Refusals of HTTP itself, where there is no request to speak of: status -> code."""

Headers = list[tuple[bytes, bytes]]


def status_of(error: ChiasmError) -> int:
    """The HTTP status of an error; 500 for a code this version does not know."""
    return STATUS.get(error.code, 500)


def error_body(error: ChiasmError) -> ErrorBody:
    """What a client reads."""
    return ErrorBody(
        ErrorDetail(
            message=error.message,
            type=_kind(status_of(error)),
            param=error.param,
            code=error.code,
            hint=error.hint,
        )
    )


def fault_body(status: int, message: str, hint: str | None = None) -> ErrorBody:
    """The body of a refusal by HTTP itself (`HTTP_FAULTS`)."""
    code = HTTP_FAULTS.get(status, "http_error")
    return ErrorBody(ErrorDetail(message=message, type=_kind(status), param=None, code=code, hint=hint))


def error_headers(error: ChiasmError) -> Headers:
    """Headers that go with the status: when to come back, how to authenticate, whether a retry can help."""
    headers: Headers = []
    status = status_of(error)
    if isinstance(error, OverloadedError):
        headers.append((b"retry-after", str(error.retry_after_s).encode()))
    elif status == 503:
        headers.append((b"retry-after", b"1"))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status >= 500 and not error.retryable:
        headers.append((b"x-should-retry", b"false"))  # the official client would repeat any 5xx
    return headers


def encode_error(body: ErrorBody) -> bytes:
    """JSON bytes of an error body."""
    return msgspec.json.encode(body)


def _kind(status: int) -> str:
    """OpenAI's `type` of an error."""
    if status == 401:
        return "authentication_error"
    if status == 403:
        return "permission_error"
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 499 else "server_error"
