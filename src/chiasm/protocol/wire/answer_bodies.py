"""Bodies of answers, whole and in chunks, as both sides check them."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from chiasm.observability.receipt import Span
from chiasm.protocol.generation import TokenLogprob, Usage
from chiasm.protocol.wire.bodies import EmbeddingEntry, KvParams
from chiasm.protocol.wire.faults import FaultDetail

MIN_LOGPROB = -9999.0
"""JSON has no infinity; this stands for it, as in OpenAI's API."""

_Count = Annotated[int, Meta(ge=0)]
_Byte = Annotated[int, Meta(ge=0, le=255)]


class Alternative(msgspec.Struct, frozen=True):
    """A token that was possible. `token_id` is ours; -1: not told."""

    token: str
    logprob: float
    bytes: tuple[_Byte, ...] | None = None
    token_id: int = -1


class Chosen(Alternative, frozen=True):
    """A token of the output."""

    top_logprobs: tuple[Alternative, ...] = ()


class Logprobs(msgspec.Struct, frozen=True):
    """Log probabilities, in the chat form for both calls: the text form has neither bytes nor ids."""

    content: tuple[Chosen, ...] | None


class Said(msgspec.Struct, frozen=True):
    """Text of one choice: of a chunk, or all of it."""

    content: str | None = None
    role: str | UnsetType = UNSET


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice's part of an answer: `delta` of a chat chunk, `message` of a chat answer, `text` of the text call."""

    index: Annotated[int, Meta(ge=0)]
    delta: Said | UnsetType = UNSET
    message: Said | UnsetType = UNSET
    text: str | UnsetType = UNSET
    logprobs: Logprobs | None = None
    finish_reason: Literal["stop", "length"] | None = None
    stop_reason: str | int | None = None
    token_ids: tuple[int, ...] | UnsetType | None = UNSET


class PromptDetails(msgspec.Struct, frozen=True):
    """Of the prompt tokens: found in the prefix cache, and taken by pictures."""

    cached_tokens: _Count | None = 0
    image_tokens: _Count = 0


class WireUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts."""

    prompt_tokens: _Count
    completion_tokens: _Count
    total_tokens: _Count
    prompt_tokens_details: PromptDetails | None = None


class AnswerExtension(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Chiasm's own part of an answer."""

    spans: tuple[Span, ...] = ()
    num_cached_embeddings: _Count = 0


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is read of a whole answer, or of one event of a stream."""

    choices: tuple[Choice, ...] | UnsetType = UNSET
    usage: WireUsage | None = None
    ec_transfer_params: dict[str, EmbeddingEntry] | None = None
    kv_transfer_params: KvParams | None = None
    chiasm: AnswerExtension | None = None
    error: FaultDetail | None = None


class HeadedAnswer(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """What is written: with what every answer of this API repeats."""

    id: str
    object: str
    created: int
    model: str


def usage_body(usage: Usage) -> WireUsage:
    """Token counts in OpenAI's words."""
    return WireUsage(
        prompt_tokens=usage.num_prompt_tokens,
        completion_tokens=usage.num_output_tokens,
        total_tokens=usage.num_prompt_tokens + usage.num_output_tokens,
        prompt_tokens_details=PromptDetails(usage.num_cached_tokens, usage.num_visual_tokens),
    )


def usage_of(body: WireUsage, extension: AnswerExtension) -> Usage:
    """Token counts in ours."""
    details = body.prompt_tokens_details or PromptDetails()
    return Usage(
        num_prompt_tokens=body.prompt_tokens,
        num_output_tokens=body.completion_tokens,
        num_cached_tokens=details.cached_tokens or 0,
        num_visual_tokens=details.image_tokens,
        num_cached_embeddings=extension.num_cached_embeddings,
    )


def logprobs_body(logprobs: tuple[TokenLogprob, ...] | None) -> Logprobs | None:
    """Log probabilities in OpenAI's words."""
    if logprobs is None:
        return None
    return Logprobs(
        tuple(
            Chosen(
                entry.token,
                max(entry.logprob, MIN_LOGPROB),
                tuple(entry.token_bytes),
                entry.token_id,
                tuple(
                    Alternative(top.token, max(top.logprob, MIN_LOGPROB), tuple(top.token_bytes), top.token_id)
                    for top in entry.top
                ),
            )
            for entry in logprobs
        )
    )


def logprobs_of(body: Logprobs | None) -> tuple[TokenLogprob, ...] | None:
    """Log probabilities in ours."""
    if body is None or body.content is None:
        return None
    return tuple(
        TokenLogprob(chosen.token_id, chosen.token, _bytes_of(chosen), chosen.logprob, _alternatives(chosen))
        for chosen in body.content
    )


def _alternatives(chosen: Chosen) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(top.token_id, top.token, _bytes_of(top), top.logprob) for top in chosen.top_logprobs)


def _bytes_of(token: Alternative) -> bytes:
    return token.token.encode() if token.bytes is None else bytes(token.bytes)
