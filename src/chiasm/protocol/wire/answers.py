"""Events and handles to bodies: a worker's side."""

import time
from collections.abc import Iterable
from typing import TypeVar

import msgspec
from msgspec import UNSET

from chiasm.errors import ChiasmError
from chiasm.protocol.generation import ChoiceFinished, GenerateEvent, RequestFinished, TokenEvent, TokenLogprob
from chiasm.protocol.openai.responses import DONE
from chiasm.protocol.wire.answer_bodies import (
    Answer,
    AnswerExtension,
    Choice,
    HeadedAnswer,
    Said,
    WireUsage,
    logprobs_body,
    usage_body,
)
from chiasm.protocol.wire.bodies import EmbeddingEntry, KvParams
from chiasm.protocol.wire.faults import encode_fault
from chiasm.protocol.wire.items import metadata_of
from chiasm.protocol.wire.requests import CHAT_PATH
from chiasm.protocol.worker import EncodeResponse

AnyAnswer = TypeVar("AnyAnswer", Answer, HeadedAnswer)
_ENCODE = msgspec.json.Encoder().encode
_NOTHING = Said()
_NO_TOKENS = WireUsage(prompt_tokens=0, completion_tokens=0, total_tokens=0)  # an encoder samples nothing


class AnswerEncoder:
    """Writes the answer to one generation, as a stream or as a whole."""

    def __init__(self, path: str, request_id: str, model: str) -> None:
        """Take the path that was called: the two APIs differ in where the text stands."""
        self._is_chat = path == CHAT_PATH
        self._heading = HeadedAnswer(
            id=request_id,
            object="chat.completion" if self._is_chat else "text_completion",
            created=int(time.time()),
            model=model,
        )
        chunk = "chat.completion.chunk" if self._is_chat else "text_completion"
        heading = _ENCODE(msgspec.structs.replace(self._heading, object=chunk))
        self._prefix = b"data: " + heading.removesuffix(b"}") + b',"choices":['

    def chunk(self, event: GenerateEvent) -> bytes:
        """One server-sent event. That of `RequestFinished` ends the stream."""
        if isinstance(event, TokenEvent):
            return self._prefix + _ENCODE(self._said(event)) + b"]}\n\n"
        if isinstance(event, ChoiceFinished):
            return self._prefix + _ENCODE(self._ended(event)) + b"]}\n\n"
        assert isinstance(event, RequestFinished), "routes are made by whoever routes"
        rest = _ENCODE(_closing(event, Answer())).removeprefix(b"{")
        return self._prefix + b"]," + rest + b"\n\n" + DONE

    @staticmethod
    def failure(error: ChiasmError) -> bytes:
        """The events that end a stream with an error."""
        return b"data: " + encode_fault(error) + b"\n\n" + DONE

    def whole(self, events: Iterable[GenerateEvent]) -> bytes:
        """The body that holds all events of a request."""
        gathered: dict[int, _Gathered] = {}
        body = self._heading
        for event in events:
            if isinstance(event, RequestFinished):
                body = _closing(event, body)
            elif isinstance(event, TokenEvent | ChoiceFinished):
                gathered.setdefault(event.choice, _Gathered()).add(event)
        choices = tuple(self._choice(index, choice) for index, choice in sorted(gathered.items()))
        return _ENCODE(msgspec.structs.replace(body, choices=choices))

    def _said(self, event: TokenEvent) -> Choice:
        logprobs = logprobs_body(event.logprobs)
        if self._is_chat:
            return Choice(index=event.choice, delta=Said(event.text), logprobs=logprobs, token_ids=event.token_ids)
        return Choice(index=event.choice, text=event.text, logprobs=logprobs, token_ids=event.token_ids)

    def _ended(self, event: ChoiceFinished) -> Choice:
        if self._is_chat:
            return Choice(index=event.choice, delta=_NOTHING, finish_reason=event.reason, stop_reason=event.stop)
        return Choice(index=event.choice, text="", finish_reason=event.reason, stop_reason=event.stop)

    def _choice(self, index: int, gathered: "_Gathered") -> Choice:
        text, ended = "".join(gathered.texts), gathered.ended
        said: dict[str, Said | str] = {"message": Said(text, "assistant")} if self._is_chat else {"text": text}
        return Choice(
            index=index,
            logprobs=logprobs_body(None if gathered.logprobs is None else tuple(gathered.logprobs)),
            finish_reason=ended.reason if ended else None,
            stop_reason=ended.stop if ended else None,
            token_ids=tuple(gathered.token_ids) if gathered.texts else UNSET,
            **said,  # type: ignore[arg-type]
        )


class _Gathered:
    """One choice, until it is complete."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] | None = None
        self.ended: ChoiceFinished | None = None

    def add(self, event: TokenEvent | ChoiceFinished) -> None:
        if isinstance(event, ChoiceFinished):
            self.ended = event
            return
        self.texts.append(event.text)
        self.token_ids.extend(event.token_ids)
        if event.logprobs is not None:
            self.logprobs = [*(self.logprobs or ()), *event.logprobs]


def encode_encoded(response: EncodeResponse, request_id: str, model: str) -> bytes:
    """The body of the answer to an encode call; one entry per distinct handle."""
    entries: dict[str, EmbeddingEntry] = {}
    for index, handle in enumerate(response.handles):
        key = handle.metadata.identity
        if key in entries and entries[key].handle != handle:
            key = f"{key}-{index}"
        entries.setdefault(key, EmbeddingEntry([], metadata_of(handle), handle)).item_indices.append(index)
    said = Choice(index=0, message=Said("", "assistant"), finish_reason="stop", token_ids=())
    return _ENCODE(
        HeadedAnswer(
            id=request_id,
            object="chat.completion",
            created=int(time.time()),
            model=model,
            choices=(said,),
            usage=_NO_TOKENS,
            ec_transfer_params=entries,
            chiasm=AnswerExtension(spans=response.spans),
        )
    )


def _closing(event: RequestFinished, body: AnyAnswer) -> AnyAnswer:
    kv = None if event.kv is None else KvParams(do_remote_prefill=True, handle=event.kv)
    extension = AnswerExtension(spans=event.spans, num_cached_embeddings=event.usage.num_cached_embeddings)
    return msgspec.structs.replace(body, usage=usage_body(event.usage), kv_transfer_params=kv, chiasm=extension)
