"""Text completion responses, whole and streamed."""

from collections.abc import Iterable

from msgspec import UNSET, UnsetType

from chiasm.gateway.openai.answer import CollectedChoice, collect, json_bytes, sse, usage_body
from chiasm.gateway.openai.plan import Heading
from chiasm.observability.receipt import Receipt
from chiasm.protocol.generation import ChoiceFinished, GenerateEvent, TokenEvent, TokenLogprob, Usage
from chiasm.protocol.openai.responses import (
    DONE,
    ChiasmBody,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    UsageBody,
)


class CompletionWriter:
    """Writes one text completions response; see `chiasm.gateway.openai.plan.Writer`."""

    def __init__(self, heading: Heading, num_choices: int, has_usage_chunk: bool) -> None:  # noqa: FBT001 - one flag, named by its only callers
        self._heading = heading
        self._choices = [CollectedChoice() for _ in range(num_choices)]
        self._offsets = [0] * num_choices
        self._has_usage_chunk = has_usage_chunk
        self._no_usage = None if has_usage_chunk else UNSET  # with a usage chunk, all others say null

    def opening(self) -> bytes:
        """Return nothing: there are no roles."""
        return b""

    def chunks(self, batch: list[GenerateEvent]) -> bytes:
        """Return one chunk per event that shows."""
        choices = [choice for event in batch if (choice := self._chunk_choice(event)) is not None]
        return b"".join([sse(self._body([choice], self._no_usage)) for choice in choices])

    def closing(self, usage: Usage, receipt: Receipt | None) -> bytes:
        """Return what was asked for beyond the text, and the end mark."""
        if not self._has_usage_chunk and receipt is None:
            return DONE
        return sse(self._body([], usage_body(usage) if self._has_usage_chunk else UNSET, receipt)) + DONE

    def add(self, batch: list[GenerateEvent]) -> None:
        """Collect a batch for `whole`."""
        collect(self._choices, batch)

    def whole(self, usage: Usage, receipt: Receipt | None) -> bytes:
        """Return the complete response body."""
        choices = [
            CompletionChoice(
                index, choice.text, _logprobs(choice.logprobs, 0), choice.finish_reason, choice.stop_reason
            )
            for index, choice in enumerate(self._choices)
        ]
        return json_bytes(self._body(choices, usage_body(usage), receipt))

    def _body(
        self, choices: list[CompletionChoice], usage: UsageBody | UnsetType | None, receipt: Receipt | None = None
    ) -> Completion:
        return Completion(
            id=self._heading.id,
            created=self._heading.created,
            model=self._heading.model,
            system_fingerprint=self._heading.system_fingerprint,
            choices=choices,
            usage=usage,
            chiasm=UNSET if receipt is None else ChiasmBody(receipt),
        )

    def _chunk_choice(self, event: GenerateEvent) -> CompletionChoice | None:
        if isinstance(event, TokenEvent):
            if not event.text and not event.logprobs:
                return None
            logprobs = _logprobs(event.logprobs, self._offsets[event.choice])
            self._offsets[event.choice] += sum(len(entry.token) for entry in event.logprobs or ())
            return CompletionChoice(event.choice, event.text, logprobs)
        if isinstance(event, ChoiceFinished):
            return CompletionChoice(event.choice, "", None, event.reason, event.stop)
        return None


def _logprobs(logprobs: Iterable[TokenLogprob] | None, offset: int) -> CompletionLogprobs | None:
    """Logprobs in the text form. Each token's own is among its alternatives, as in OpenAI's."""
    if not logprobs:
        return None
    body = CompletionLogprobs([], [], [], [])
    for entry in logprobs:
        body.text_offset.append(offset)
        body.tokens.append(entry.token)
        body.token_logprobs.append(entry.logprob)
        body.top_logprobs.append({top.token: top.logprob for top in entry.top} | {entry.token: entry.logprob})
        offset += len(entry.token)
    return body
