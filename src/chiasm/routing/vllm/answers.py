"""vLLM's answers as events: what all its versions share."""

from collections.abc import Sequence
from typing import Any

import msgspec

from chiasm.errors import EngineError, EngineStepError
from chiasm.observability.receipt import Span
from chiasm.protocol.generation import (
    ChoiceFinished,
    GenerateEvent,
    RequestFinished,
    TokenEvent,
    TokenLogprob,
    Usage,
)
from chiasm.protocol.wire.faults import FaultDetail, rebuilt

_MIN_LOGPROB = -9999.0


class _Top(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int] | None = None


class _Chosen(_Top, frozen=True):
    top_logprobs: list[_Top] = []


class _Logprobs(msgspec.Struct, frozen=True):
    """`content` in chats; the rest in completions of texts."""

    content: list[_Chosen] | None = None
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class _Said(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    index: int
    delta: _Said | None = None
    message: _Said | None = None
    text: str | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class _PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int | None = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Times(msgspec.Struct, frozen=True):
    queue_time_ms: float | None = None
    time_to_first_token_ms: float | None = None


class Answer(msgspec.Struct, frozen=True):
    """What is read of a whole answer, or of one event of a stream."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    metrics: _Times | None = None
    kv_transfer_params: dict[str, Any] | None = None
    error: FaultDetail | None = None


_DECODE = msgspec.json.Decoder(Answer).decode


def answer_of(body: bytes) -> Answer:
    """Read an answer. Raises what it says went wrong, or `EngineError` when it cannot be understood."""
    try:
        answer = _DECODE(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise EngineError(f"vLLM's answer cannot be understood: {str(error)[:200]}") from error
    if answer.error is not None:
        raise rebuilt(answer.error)
    return answer


class EventReader:
    """Turns the answers to one call into events.

    Attributes:
        spans: What the server says of its own times, once it has.
    """

    def __init__(self, num_choices: int, num_visual_tokens: int) -> None:
        self._num_choices = num_choices
        self._num_visual_tokens = num_visual_tokens
        self.spans: tuple[Span, ...] = ()

    def events(self, answer: Answer) -> list[GenerateEvent]:
        """Events of one answer but for the last of all; nothing where it only says that a choice begins.

        Raises:
            EngineStepError: vLLM gave a choice up.
        """
        if answer.metrics is not None:
            self.spans = _spans(answer.metrics)
        found: list[GenerateEvent] = []
        for choice in answer.choices:
            if not 0 <= choice.index < self._num_choices:
                raise EngineError(f"vLLM named choice {choice.index} of {self._num_choices}")
            found += _choice_events(choice)
        return found

    def finished(self, answer: Answer) -> RequestFinished | None:
        """The last event, where the answer has token counts."""
        counts = answer.usage
        if counts is None:
            return None
        details = counts.prompt_tokens_details or _PromptDetails()
        usage = Usage(
            num_prompt_tokens=counts.prompt_tokens,
            num_output_tokens=counts.completion_tokens or 0,
            num_cached_tokens=details.cached_tokens or 0,
            num_visual_tokens=self._num_visual_tokens,
        )
        return RequestFinished(usage, self.spans)


def _choice_events(choice: _Choice) -> list[GenerateEvent]:
    found: list[GenerateEvent] = []
    said = choice.delta or choice.message
    text = (said.content if said is not None else choice.text) or ""
    token_ids = tuple(choice.token_ids or ())
    logprobs = _logprobs(choice.logprobs, token_ids)
    if text or token_ids or logprobs:
        found.append(TokenEvent(choice.index, text, token_ids, logprobs))
    if choice.finish_reason in ("stop", "length"):
        found.append(ChoiceFinished(choice.index, choice.finish_reason, choice.stop_reason))  # type: ignore[arg-type]
    elif choice.finish_reason is not None:
        raise EngineStepError(f"vLLM ended the answer with '{choice.finish_reason[:40]}'")
    return found


def _logprobs(body: _Logprobs | None, token_ids: Sequence[int]) -> tuple[TokenLogprob, ...] | None:
    if body is None:
        return None
    chosen = body.content if body.content is not None else _chosen(body)
    ids = token_ids if len(token_ids) == len(chosen) else [-1] * len(chosen)  # -1: not told
    return tuple(
        TokenLogprob(token_id, one.token, _bytes(one), max(one.logprob, _MIN_LOGPROB), _tops(one))
        for token_id, one in zip(ids, chosen, strict=True)
    )


def _chosen(body: _Logprobs) -> list[_Chosen]:
    """The form of chats, of what stands in the form of texts, which has no bytes."""
    tops = body.top_logprobs or [None] * len(body.tokens)
    return [
        _Chosen(
            token, _MIN_LOGPROB if logprob is None else logprob, None, [_Top(*pair) for pair in (top or {}).items()]
        )
        for token, logprob, top in zip(body.tokens, body.token_logprobs, tops, strict=True)
    ]


def _tops(chosen: _Chosen) -> tuple[TokenLogprob, ...]:
    return tuple(
        TokenLogprob(-1, top.token, _bytes(top), max(top.logprob, _MIN_LOGPROB)) for top in chosen.top_logprobs
    )


def _bytes(token: _Top) -> bytes:
    return token.token.encode() if token.bytes is None else bytes(token.bytes)


def _spans(times: _Times) -> tuple[Span, ...]:
    """The wait for the first step, and the prompt's computation; pictures that the server encodes are part of it."""
    first_s, queue_s = (times.time_to_first_token_ms or 0.0) / 1e3, (times.queue_time_ms or 0.0) / 1e3
    if not first_s:
        return ()
    return (Span("prefill_queue", 0.0, min(queue_s, first_s)), Span("prefill", min(queue_s, first_s), first_s))
