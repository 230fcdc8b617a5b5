"""What vLLM's refusals mean here."""

from chiasm.errors import (
    ChiasmError,
    ContextLengthError,
    EngineError,
    EngineStepError,
    HandleExpiredError,
    InvalidRequestError,
    MediaDecodeError,
    ModelNotFoundError,
    TransferError,
)
from chiasm.protocol.generation import GenerateRequest
from chiasm.protocol.media import EmbeddingHandle

_TOO_LONG = ("maximum context length", "maximum model length", "max_model_len")
_SPOOL_GONE = f"({TransferError.code})"  # what Chiasm's media connector says, with status 422
_MAX_MESSAGE_CHARS = 300


def translated(error: ChiasmError, request: GenerateRequest | None) -> ChiasmError:
    """The error as the router is to understand it; `request` is the generation that met it, None for other calls.

    A failure of one request that names embeddings may be theirs: vLLM does not tell, so that it is taken to be.
    Encoding them again is what helps then, and does no harm where something else was the cause.
    """
    message = error.message[:_MAX_MESSAGE_CHARS]
    if isinstance(error, EngineStepError) and request is not None and _names_embeddings(request):
        return HandleExpiredError(f"The worker did not get embeddings of the request, or failed with them: {message}")
    if isinstance(error, ModelNotFoundError):
        return EngineError("The vLLM server does not serve this model any more", hint="Look at its --served-model-name")
    if not isinstance(error, InvalidRequestError):
        return error
    if any(words in message for words in _TOO_LONG):
        return ContextLengthError(message, hint="Shorten the prompt, send fewer pictures, or ask for fewer tokens")
    if _SPOOL_GONE in message:
        return TransferError("The spool no longer held a medium of the request", hint="Send the request again")
    if message.startswith("Failed to load image"):
        return MediaDecodeError("vLLM cannot decode a picture of the request", hint="Send it as PNG or JPEG")
    return InvalidRequestError(message, param=_pointer(error.param))


def _names_embeddings(request: GenerateRequest) -> bool:
    return request.kv is None and any(isinstance(item.source, EmbeddingHandle) for item in request.items)


def _pointer(param: str | None) -> str | None:
    return f"/{param}" if param and param.isidentifier() else None
