"""Chat responses, whole and streamed."""

from collections.abc import Iterable

from msgspec import UNSET

from chiasm.gateway.openai.answer import CollectedChoice, collect, json_bytes, sse, text_bytes, usage_body
from chiasm.gateway.openai.plan import Heading
from chiasm.observability.receipt import Receipt
from chiasm.protocol.generation import ChoiceFinished, GenerateEvent, TokenEvent, TokenLogprob, Usage
from chiasm.protocol.openai.responses import (
    DONE,
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprobs,
    ChiasmBody,
    Delta,
    TokenLogprobBody,
    TopLogprob,
)

_PLACE = "\x00text\x00"
"""Stands for a text in a chunk that is made once and filled in for every token."""


class ChatWriter:
    """Writes one chat response; see `chiasm.gateway.openai.plan.Writer`."""

    def __init__(self, heading: Heading, num_choices: int, has_usage_chunk: bool) -> None:  # noqa: FBT001 - one flag, named by its only callers
        self._heading = heading
        self._choices = [CollectedChoice() for _ in range(num_choices)]
        self._has_usage_chunk = has_usage_chunk
        self._frames: dict[int, tuple[bytes, bytes]] = {}
        self._no_usage = None if has_usage_chunk else UNSET  # with a usage chunk, all others say null

    def opening(self) -> bytes:
        """Return the role of each choice."""
        return b"".join(
            self._chunk(ChatChunkChoice(index, Delta(role="assistant", content="")))
            for index in range(len(self._choices))
        )

    def chunks(self, batch: list[GenerateEvent]) -> bytes:
        """Return one chunk per event that shows."""
        return b"".join([self._event(event) for event in batch])

    def closing(self, usage: Usage, receipt: Receipt | None) -> bytes:
        """Return what was asked for beyond the text, and the end mark."""
        if not self._has_usage_chunk and receipt is None:
            return DONE
        heading = self._heading
        last = ChatChunk(
            id=heading.id,
            created=heading.created,
            model=heading.model,
            system_fingerprint=heading.system_fingerprint,
            choices=[],
            usage=usage_body(usage) if self._has_usage_chunk else UNSET,
            chiasm=UNSET if receipt is None else ChiasmBody(receipt),
        )
        return sse(last) + DONE

    def add(self, batch: list[GenerateEvent]) -> None:
        """Collect a batch for `whole`."""
        collect(self._choices, batch)

    def whole(self, usage: Usage, receipt: Receipt | None) -> bytes:
        """Return the complete response body."""
        heading = self._heading
        return json_bytes(
            ChatCompletion(
                id=heading.id,
                created=heading.created,
                model=heading.model,
                system_fingerprint=heading.system_fingerprint,
                choices=[_whole_choice(index, choice) for index, choice in enumerate(self._choices)],
                usage=usage_body(usage),
                chiasm=UNSET if receipt is None else ChiasmBody(receipt),
            )
        )

    def _event(self, event: GenerateEvent) -> bytes:
        if isinstance(event, TokenEvent) and not event.logprobs:
            if not event.text:
                return b""
            before, after = self._frame(event.choice)
            return before + text_bytes(event.text) + after
        choice = _chunk_choice(event)
        return b"" if choice is None else self._chunk(choice)

    def _frame(self, index: int) -> tuple[bytes, bytes]:
        """What stands before and after the text of a choice's plain chunks, which differ in nothing else."""
        frame = self._frames.get(index)
        if frame is None:
            chunk = self._chunk(ChatChunkChoice(index, Delta(content=_PLACE)))
            before, _, after = chunk.rpartition(text_bytes(_PLACE))
            frame = self._frames[index] = before, after
        return frame

    def _chunk(self, choice: ChatChunkChoice) -> bytes:
        heading = self._heading
        return sse(
            ChatChunk(
                id=heading.id,
                created=heading.created,
                model=heading.model,
                system_fingerprint=heading.system_fingerprint,
                choices=[choice],
                usage=self._no_usage,
            )
        )


def _chunk_choice(event: GenerateEvent) -> ChatChunkChoice | None:
    if isinstance(event, TokenEvent):
        return ChatChunkChoice(event.choice, Delta(content=event.text), _logprobs(event.logprobs))
    if isinstance(event, ChoiceFinished):
        stop = UNSET if event.stop is None else event.stop
        return ChatChunkChoice(event.choice, Delta(), None, event.reason, stop)
    return None


def _whole_choice(index: int, choice: CollectedChoice) -> ChatChoice:
    return ChatChoice(
        index=index,
        message=AssistantMessage(choice.text),
        logprobs=_logprobs(choice.logprobs),
        finish_reason=choice.finish_reason,
        stop_reason=choice.stop_reason,
    )


def _logprobs(logprobs: Iterable[TokenLogprob] | None) -> ChatLogprobs | None:
    if not logprobs:
        return None
    return ChatLogprobs(
        [
            TokenLogprobBody(
                token=entry.token,
                logprob=entry.logprob,
                bytes=list(entry.token_bytes),
                top_logprobs=[TopLogprob(top.token, top.logprob, list(top.token_bytes)) for top in entry.top],
            )
            for entry in logprobs
        ]
    )
