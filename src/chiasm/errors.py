"""Every error Chiasm raises on purpose.

A class carries a stable `code`; an instance carries a message (what happened, with the values), an optional
`hint` (what to do) and an optional `param` (JSON pointer into the request). Errors about one medium of a request also
carry `item`, its position from 0. HTTP status codes are chosen only in `chiasm.protocol.openai.errors`; errors cross
the wire as their fields and are rebuilt by `chiasm.protocol.wire`.

ChiasmError
  SettingsError
    UnknownSettingError
    InvalidSettingError
    MissingExtraError
  RequestError
    InvalidRequestError
    RequestTooLargeError
    BodyTimeoutError
    UnsupportedFeatureError
    AuthenticationError
    PermissionDeniedError
    ModelNotFoundError
    AdapterError
    ContextLengthError
    MediaError
      MediaFetchError
      MediaRefusedError
      MediaTooLargeError
      MediaDecodeError
      UnsupportedMediaError
  CapacityError
    OverloadedError
      RateLimitedError
    ShuttingDownError
    DeadlineExceededError
  TransferError
    HandleExpiredError
    LayoutMismatchError
    ChecksumMismatchError
  EngineError
    EngineStartError
      ContractVersionError
      UnsupportedModelError
    EngineStepError
    EngineDeadError
    DeletionIncompleteError
    QuarantinedError
  PluginError
  RequestCancelledError
"""

from typing import ClassVar


class ChiasmError(Exception):
    """Base of the tree. `retryable` says whether the same request may succeed elsewhere or later."""

    code: ClassVar[str] = "internal_error"
    retryable: ClassVar[bool] = False

    def __init__(
        self, message: str, *, hint: str | None = None, param: str | None = None, item: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.param = param
        self.item = item


class SettingsError(ChiasmError):
    """A setting is wrong; nothing was started."""

    code = "invalid_settings"


class UnknownSettingError(SettingsError):
    """No such section or field; the message names the nearest one."""

    code = "unknown_setting"


class InvalidSettingError(SettingsError):
    """A known setting has a value of the wrong type or out of range."""

    code = "invalid_setting"


class MissingExtraError(SettingsError):
    """An optional dependency is needed; the hint names the extra to install."""

    code = "missing_extra"


class RequestError(ChiasmError):
    """The caller's request cannot be served as sent."""

    code = "invalid_request"


class InvalidRequestError(RequestError):
    """Malformed body, wrong type, or a value out of range."""


class RequestTooLargeError(RequestError):
    """The request's body has more bytes than are read."""

    code = "request_too_large"


class BodyTimeoutError(RequestError):
    """The request's body did not arrive in time."""

    code = "body_timeout"


class UnsupportedFeatureError(RequestError):
    """A part of the API that is recognised and refused rather than ignored."""

    code = "unsupported_feature"


class AuthenticationError(RequestError):
    """No valid API key."""

    code = "invalid_api_key"


class PermissionDeniedError(RequestError):
    """The API key is valid and not for this."""

    code = "permission_denied"


class ModelNotFoundError(RequestError):
    """The named model is not served here."""

    code = "model_not_found"


class AdapterError(RequestError):
    """An adapter's files are not allowed, damaged, or do not fit the model."""

    code = "adapter_refused"


class ContextLengthError(RequestError):
    """Prompt, visual tokens and asked-for output do not fit the context."""

    code = "context_length_exceeded"


class MediaError(RequestError):
    """One item of a request cannot be used."""

    code = "media_error"


class MediaFetchError(MediaError):
    """The item could not be fetched: unreachable, wrong status, cut off, too slow."""

    code = "media_fetch_failed"


class MediaRefusedError(MediaError):
    """Policy forbids the item's source. Never retried."""

    code = "media_refused"


class MediaTooLargeError(MediaError):
    """The item, or all items together, exceed a limit."""

    code = "media_too_large"


class MediaDecodeError(MediaError):
    """The bytes are of a known format but broken."""

    code = "media_undecodable"


class UnsupportedMediaError(MediaError):
    """The bytes are of no allowed format, or the model takes no such medium."""

    code = "media_unsupported"


class CapacityError(ChiasmError):
    """Not now: the same request may succeed later."""

    code = "overloaded"
    retryable = True


class OverloadedError(CapacityError):
    """A bounded queue is full. `retry_after_s` is a hint for the caller."""

    def __init__(self, message: str, *, retry_after_s: int = 1, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class RateLimitedError(OverloadedError):
    """The tenant has used what it may use for now, however idle the server is."""

    code = "rate_limited"


class ShuttingDownError(CapacityError):
    """The server drains and takes no new work."""

    code = "shutting_down"


class DeadlineExceededError(CapacityError):
    """The request's deadline passed before it finished."""

    code = "deadline_exceeded"


class TransferError(ChiasmError):
    """A tensor did not arrive as announced."""

    code = "transfer_failed"
    retryable = True


class HandleExpiredError(TransferError):
    """The producer no longer holds what the handle names; encode again."""

    code = "embedding_unavailable"


class LayoutMismatchError(TransferError):
    """Shape, dtype, count or revision differ from what the consumer expects."""

    code = "layout_mismatch"
    retryable = False


class ChecksumMismatchError(TransferError):
    """The bytes differ from those the producer published."""

    code = "checksum_mismatch"


class EngineError(ChiasmError):
    """The engine failed; not the caller's fault."""

    code = "engine_error"


class EngineStartError(EngineError):
    """The engine cannot start; the message says which requirement fails."""

    code = "engine_start_failed"


class ContractVersionError(EngineStartError):
    """Gateway and worker are of versions that do not work together; the hint says which one to upgrade first."""

    code = "contract_version_mismatch"


class UnsupportedModelError(EngineStartError):
    """The embedded engine has no family for this model type."""

    code = "unsupported_model"


class EngineStepError(EngineError):
    """One step failed; the requests in it end, the engine goes on."""

    code = "engine_step_failed"
    retryable = True


class EngineDeadError(EngineError):
    """The engine's loop has ended; every request ends with this."""

    code = "engine_dead"
    retryable = True


class PluginError(ChiasmError):
    """Code that was plugged in failed; the message names it."""

    code = "plugin_failed"


class DeletionIncompleteError(EngineError):
    """Something may be left of what was to be deleted: not every worker has answered."""

    code = "deletion_incomplete"
    retryable = True


class QuarantinedError(EngineError):
    """Workers died while they had this request; it is not given to another one for a while."""

    code = "request_quarantined"


class RequestCancelledError(ChiasmError):
    """The caller went away or cancelled. Not a fault; never counted as an error."""

    code = "cancelled"


def _tree(root: type[ChiasmError]) -> list[type[ChiasmError]]:
    return [root, *(c for sub in root.__subclasses__() for c in _tree(sub))]


def error_class(code: str) -> type[ChiasmError]:
    """The most general class with this code, or `ChiasmError` for a code of another version."""
    return next((c for c in _tree(ChiasmError) if c.code == code), ChiasmError)
