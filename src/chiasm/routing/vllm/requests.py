"""Requests as vLLM takes them: what all its versions share."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from chiasm.errors import InvalidRequestError, MediaFetchError
from chiasm.protocol.generation import (
    ChatPrompt,
    GenerateRequest,
    ItemPart,
    Message,
    SamplingParams,
    TextPart,
    TextPrompt,
    TokensPrompt,
)
from chiasm.protocol.media import EmbeddingHandle, InlineSource, MediaItem, SpoolSource
from chiasm.protocol.wire import CHAT_PATH, TEXT_PATH, WireRequest
from chiasm.protocol.wire.items import Payloads
from chiasm.protocol.worker import EncodeRequest
from chiasm.routing.vllm.model import ServedModel, media_uuid
from chiasm.routing.vllm.versions.base import Version

_ENCODE = msgspec.json.Encoder().encode
_ALWAYS = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "n",
    "min_tokens", "ignore_eos", "skip_special_tokens",
)  # fmt: skip
"""Said in every call: a server may have other defaults, from the model's generation configuration."""
_WHERE_SET = ("max_tokens", "seed", "logit_bias", "stop", "stop_token_ids")


class CallWriter:
    """Writes calls for one server.

    `spool` is the folder from which the server reads media by name; without it media travel in the calls. With
    `follows_cache` the server's cache events are to name its calls.
    """

    def __init__(
        self, model: ServedModel, served_as: str, version: Version, spool: Path | None, *, follows_cache: bool = False
    ) -> None:
        self._model = model
        self._served_as = served_as
        self._version = version
        self._spool = spool
        self._follows_cache = follows_cache

    def encode(self, request: EncodeRequest) -> WireRequest:
        """The call for embeddings. Never a stream: only a whole answer names them."""
        payloads = Payloads()
        content = [self._part(item, request.cache_salt, payloads) for item in request.items]
        body = {
            "model": self._served_as,
            "request_id": request.request_id,
            "stream": False,
            "messages": [{"role": "user", "content": content}],
        }
        return WireRequest(CHAT_PATH, payloads.spliced(_ENCODE(body)))

    def generate(self, request: GenerateRequest) -> WireRequest:
        """The call for a generation.

        Raises:
            InvalidRequestError: The prompt cannot be said to vLLM, or names an item that is not there.
        """
        payloads, prompt = Payloads(), request.prompt
        body = self._common(request)
        try:
            if isinstance(prompt, ChatPrompt):
                body |= self._chat(request, prompt, payloads)
            else:
                body |= self._text(prompt, request.sampling)
            path = CHAT_PATH if isinstance(prompt, ChatPrompt) else TEXT_PATH
            return WireRequest(path, payloads.spliced(_ENCODE(body)))
        except (OverflowError, UnicodeEncodeError) as error:
            raise InvalidRequestError("A number or a text of the request cannot be written as JSON") from error

    def _common(self, request: GenerateRequest) -> dict[str, Any]:
        served_as = self._served_as if request.adapter is None else request.adapter.revision
        body = {"model": served_as, "request_id": request.request_id, "stream": request.stream}
        if request.stream:
            body["stream_options"] = {"include_usage": True}
        if request.cache_salt:
            body["cache_salt"] = request.cache_salt
        body |= _sampling(_endless(request.sampling) if request.hands_over_kv else request.sampling)
        body["return_token_ids"] = True
        if self._follows_cache:
            body |= self._version.named_in_events(request.request_id)
        if request.hands_over_kv:
            body["kv_transfer_params"] = self._version.kv_wanted(request.request_id)
        elif request.kv is not None:
            body["kv_transfer_params"] = self._version.kv_taken(request.kv)
        return body

    def _chat(self, request: GenerateRequest, prompt: ChatPrompt, payloads: Payloads) -> dict[str, Any]:
        num_top = request.sampling.num_top_logprobs
        order: list[MediaItem] = []
        body: dict[str, Any] = {
            "messages": [self._message(one, request, order, payloads) for one in prompt.messages],
            "add_generation_prompt": not prompt.continue_final_message,
            "continue_final_message": prompt.continue_final_message,
        }
        if num_top is not None:
            body |= {"logprobs": True, "top_logprobs": num_top}
        handles = {i: item.source for i, item in enumerate(order) if isinstance(item.source, EmbeddingHandle)}
        if handles and request.kv is None:  # who takes keys and values over needs no embeddings
            body["ec_transfer_params"] = self._version.ec_params(handles)
        return body

    def _text(self, prompt: TextPrompt | TokensPrompt, sampling: SamplingParams) -> dict[str, Any]:
        if isinstance(prompt, TextPrompt):
            self._model.check_text(prompt.text)
        body = {"prompt": prompt.text if isinstance(prompt, TextPrompt) else prompt.token_ids}
        return body if sampling.num_top_logprobs is None else body | {"logprobs": sampling.num_top_logprobs}

    def _message(
        self, message: Message, request: GenerateRequest, order: list[MediaItem], payloads: Payloads
    ) -> dict[str, Any]:
        content: list[Mapping[str, Any]] = []
        for part in message.parts:
            if isinstance(part, TextPart):
                self._model.check_text(part.text)
                content.append({"type": "text", "text": part.text})
            else:
                order.append(_item(part, request.items))
                content.append(self._part(order[-1], request.cache_salt, payloads))
        if len(content) == 1 and "text" in content[0]:  # templates of some models would join parts with line breaks
            return {"role": message.role, "content": content[0]["text"]}
        return {"role": message.role, "content": content}

    def _part(self, item: MediaItem, cache_salt: str, payloads: Payloads) -> Mapping[str, Any]:
        source = item.source
        if isinstance(source, EmbeddingHandle):
            return self._version.reference(source)
        if isinstance(source, SpoolSource):
            if self._spool is None:
                raise MediaFetchError("This worker does not read the media spool")
            url = msgspec.Raw(_ENCODE((self._spool / source.name).as_uri()))
        else:
            assert isinstance(source, InlineSource)  # vLLM takes no late embeddings, and says so
            url = msgspec.Raw(b'"' + _data_url(item, source, payloads) + b'"')
        kind = f"{item.kind}_url"
        return {"type": kind, kind: {"url": url}, "uuid": media_uuid(item.identity, cache_salt)}


def _data_url(item: MediaItem, source: InlineSource, payloads: Payloads) -> bytes:
    is_plain = item.format.isascii() and item.format.replace("-", "").isalnum()
    kind = f"{item.kind}/{item.format}" if is_plain else "application/octet-stream"
    return f"data:{kind};base64,".encode() + payloads.add(source.data)


def _item(part: ItemPart, items: Sequence[MediaItem]) -> MediaItem:
    if not 0 <= part.item < len(items):
        raise InvalidRequestError(f"The prompt names item {part.item} of {len(items)}")
    return items[part.item]


def _endless(sampling: SamplingParams) -> SamplingParams:
    """What ends by its length alone: Mooncake keeps nothing of a prompt whose answer is over with the first token.

    Nobody takes that token: the worker that decodes makes it anew, with the conditions that were asked for.
    """
    return msgspec.structs.replace(sampling, ignore_eos=True, stop=(), stop_token_ids=())


def _sampling(sampling: SamplingParams) -> dict[str, Any]:
    body = {name: getattr(sampling, name) for name in _ALWAYS}
    body |= {name: value for name in _WHERE_SET if (value := getattr(sampling, name)) not in (None, (), {})}
    if sampling.temperature == 0 and sampling.n > 1:  # vLLM refuses several greedy choices; the likeliest is the same
        body |= {"temperature": 1.0, "top_k": 1, "top_p": 1.0, "min_p": 0.0}
    if sampling.json_schema is not None:
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": _raw_json(sampling.json_schema)},
        }
    return body


def _raw_json(text: str) -> msgspec.Raw:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequestError("The schema is not JSON", param="/response_format/json_schema/schema") from error
    return msgspec.Raw(text.encode())
