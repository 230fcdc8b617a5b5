"""Answers to events and handles: the side that called."""

from typing import Any

import msgspec
from msgspec import UNSET

from chiasm.errors import ChiasmError, EngineError
from chiasm.protocol.generation import ChoiceFinished, GenerateEvent, RequestFinished, TokenEvent, merge_adjacent
from chiasm.protocol.wire.answer_bodies import Answer, AnswerExtension, Choice, Said, logprobs_of, usage_of
from chiasm.protocol.wire.faults import rebuilt
from chiasm.protocol.wire.plain_runs import PlainRuns
from chiasm.protocol.worker import EncodeResponse

MAX_EVENT_BYTES = 4 * 2**20
"""Longest event of a stream."""

_DECODE = msgspec.json.Decoder(Answer).decode
_NO_EXTENSION = AnswerExtension()


class StreamDecoder:
    """Turns the bytes of a stream into events, whatever the pieces in which they come.

    Tokens of one choice that come together are one event.

    Attributes:
        failure: The error that the stream ended with, or why it cannot be understood; nothing is read after it.
        is_done: Whether the stream has come to its end mark.
    """

    def __init__(self, num_choices: int) -> None:
        self._num_choices = num_choices
        self._rest = b""
        self._runs: PlainRuns | None = None
        self.failure: ChiasmError | None = None
        self.is_done = False

    def feed(self, data: bytes) -> list[GenerateEvent]:
        """Return the events that are complete now, tokens joined. What comes before a failure still counts."""
        complete, _, self._rest = (self._rest + data if self._rest else data).rpartition(b"\n\n")
        events: list[GenerateEvent] = []
        if self._runs is not None and not self.is_done:
            run, complete = self._runs.split(complete)
            if run is not None:
                events.append(run)
        try:
            for block in complete.split(b"\n\n") if complete else ():
                if self.is_done:
                    break
                self._read(block, events)
            if len(self._rest) > MAX_EVENT_BYTES:
                raise EngineError(f"The worker sent an event of more than {MAX_EVENT_BYTES} bytes")
        except ChiasmError as error:
            self.failure = error
            self.is_done = True
        return merge_adjacent(events) if len(events) > 1 else events

    def _read(self, block: bytes, events: list[GenerateEvent]) -> None:
        if not block.startswith(b"data: "):
            return  # a comment that keeps the connection alive
        payload = block[6:]
        if payload == b"[DONE]":
            self.is_done = True
            return
        answer = _answer(payload)
        if answer.error is not None:
            raise rebuilt(answer.error)
        _add_events(answer, self._num_choices, events)
        if self._runs is None and events and isinstance(events[-1], TokenEvent):
            self._runs = PlainRuns.like(block, events[-1])


def decode_whole(body: bytes, num_choices: int) -> list[GenerateEvent]:
    """The events of a whole answer, choice by choice. Raises `EngineError` for one that cannot be understood."""
    events: list[GenerateEvent] = []
    _add_events(_answer(body), num_choices, events)
    if not events or not isinstance(events[-1], RequestFinished):
        raise EngineError("The worker's answer has no token counts")
    return events


def decode_encoded(body: bytes, num_items: int) -> EncodeResponse:
    """The handles of an encode call, one per item. Raises `EngineError` for an answer that lacks one."""
    answer = _answer(body)
    handles = {}
    for entry in (answer.ec_transfer_params or {}).values():
        for index in entry.item_indices:
            if index >= num_items:
                raise EngineError(f"The worker named item {index} of {num_items}")
            handles[index] = entry.handle
    if len(handles) != num_items:
        raise EngineError(f"The worker gave {len(handles)} embeddings for {num_items} items")
    return EncodeResponse(
        handles=tuple(handles[index] for index in range(num_items)), spans=(answer.chiasm or _NO_EXTENSION).spans
    )


def _answer(payload: bytes) -> Answer:
    try:
        return _DECODE(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise EngineError(f"The worker's answer cannot be understood: {_what(error)}") from error


def _what(error: Exception) -> str:
    return str(error)[:200]


def _add_events(answer: Answer, num_choices: int, events: list[GenerateEvent]) -> None:
    choices: Any = () if answer.choices is UNSET else answer.choices
    for choice in choices:
        if choice.index >= num_choices:
            raise EngineError(f"The worker named choice {choice.index} of {num_choices}")
        _add_choice(choice, events)
    if answer.usage is not None:
        extension = answer.chiasm or _NO_EXTENSION
        kv = answer.kv_transfer_params.handle if answer.kv_transfer_params else None
        events.append(RequestFinished(usage_of(answer.usage, extension), extension.spans, kv))


def _add_choice(choice: Choice, events: list[GenerateEvent]) -> None:
    text = _text(choice)
    if text or choice.token_ids not in (UNSET, None) or choice.logprobs is not None:
        token_ids: Any = () if choice.token_ids in (UNSET, None) else choice.token_ids
        events.append(TokenEvent(choice.index, text, token_ids, logprobs_of(choice.logprobs)))
    if choice.finish_reason is not None:
        events.append(ChoiceFinished(choice.index, choice.finish_reason, choice.stop_reason))


def _text(choice: Choice) -> str:
    said = choice.message if choice.delta is UNSET else choice.delta
    if isinstance(said, Said):
        return said.content or ""
    return choice.text if isinstance(choice.text, str) else ""
