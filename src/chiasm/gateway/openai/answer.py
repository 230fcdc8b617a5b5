"""Parts of responses that both APIs share."""

from collections.abc import Iterable

import msgspec

from chiasm.protocol.generation import ChoiceFinished, GenerateEvent, TokenEvent, TokenLogprob, Usage
from chiasm.protocol.openai.responses import FinishReason, PromptTokensDetails, UsageBody

_ENCODE = msgspec.json.Encoder().encode


class CollectedChoice:
    """One choice, gathered until it is complete."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.logprobs: list[TokenLogprob] = []
        self.finish_reason: FinishReason = "stop"
        self.stop_reason: str | int | None = None

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self.texts)


def collect(choices: list[CollectedChoice], batch: Iterable[GenerateEvent]) -> None:
    """Add a batch's events to the choices they belong to."""
    for event in batch:
        if isinstance(event, TokenEvent):
            choices[event.choice].texts.append(event.text)
            choices[event.choice].logprobs.extend(event.logprobs or ())
        elif isinstance(event, ChoiceFinished):
            choices[event.choice].finish_reason = event.reason
            choices[event.choice].stop_reason = event.stop


def usage_body(usage: Usage) -> UsageBody:
    """Token counts in OpenAI's words."""
    return UsageBody(
        prompt_tokens=usage.num_prompt_tokens,
        completion_tokens=usage.num_output_tokens,
        total_tokens=usage.num_prompt_tokens + usage.num_output_tokens,
        prompt_tokens_details=PromptTokensDetails(
            cached_tokens=usage.num_cached_tokens, image_tokens=usage.num_visual_tokens
        ),
    )


def sse(body: msgspec.Struct) -> bytes:
    """One server-sent event."""
    return b"data: " + _ENCODE(body) + b"\n\n"


def text_bytes(text: str) -> bytes:
    """A JSON string."""
    return _ENCODE(text)


def json_bytes(body: msgspec.Struct) -> bytes:
    """A response body."""
    return _ENCODE(body)
