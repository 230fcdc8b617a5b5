"""Response bodies and stream chunks of both completions APIs."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from chiasm.observability.receipt import Receipt

FinishReason = Literal["stop", "length"]

DONE = b"data: [DONE]\n\n"
"""The event that ends a stream."""


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Of the prompt tokens: found in the prefix cache, and taken by pictures."""

    cached_tokens: int
    image_tokens: int


class UsageBody(msgspec.Struct, frozen=True):
    """Token counts; prompt tokens include those of pictures, completion tokens those of all choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class ChiasmBody(msgspec.Struct, frozen=True):
    """Chiasm's own part of a response, when asked for."""

    receipt: Receipt


class TopLogprob(msgspec.Struct, frozen=True):
    """One alternative token. `bytes` are its bytes as numbers, since a token may be part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobBody(msgspec.Struct, frozen=True):
    """One output token and its alternatives."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """Log probabilities in the chat form."""

    content: list[TokenLogprobBody]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Log probabilities in the text form. `text_offset` counts characters from the start of the output."""

    text_offset: list[int]
    token_logprobs: list[float]
    tokens: list[str]
    top_logprobs: list[dict[str, float]]


class AssistantMessage(msgspec.Struct, frozen=True):
    """What the model said."""

    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True):
    """One answer. `stop_reason` is the stop string or token id that ended it."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None = None


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole chat response."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageBody
    system_fingerprint: str
    chiasm: ChiasmBody | UnsetType = UNSET


class Delta(msgspec.Struct, frozen=True):
    """What a chunk adds to a message."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True):
    """One choice's part of a chunk."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | UnsetType = UNSET


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a chat stream. `usage` is there, mostly null, when the caller asked for it."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    system_fingerprint: str
    usage: UsageBody | UnsetType | None = UNSET
    chiasm: ChiasmBody | UnsetType = UNSET


class CompletionChoice(msgspec.Struct, frozen=True):
    """One continuation, or a chunk's part of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A text completions response, and each event of its stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    system_fingerprint: str
    usage: UsageBody | UnsetType | None = UNSET
    chiasm: ChiasmBody | UnsetType = UNSET
