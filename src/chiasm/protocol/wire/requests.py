"""Requests to bodies and back."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from chiasm.errors import ContractVersionError, InvalidRequestError
from chiasm.protocol.contract import CONTRACT_VERSION, check_gateway
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
from chiasm.protocol.media import MediaItem
from chiasm.protocol.openai.faults import request_fault
from chiasm.protocol.wire.bodies import (
    ChatBody,
    Extension,
    Fields,
    KvParams,
    Part,
    Streaming,
    Text,
    TextBody,
    WireBody,
    WireMessage,
    WireSchema,
    WireSchemaFormat,
)
from chiasm.protocol.wire.items import MediaPart, Payloads, body_of, entries_of, item_of, part_of
from chiasm.protocol.worker import EncodeRequest

CHAT_PATH = "/v1/chat/completions"
TEXT_PATH = "/v1/completions"

_ENCODE = msgspec.json.Encoder().encode
_DECODE_CHAT = msgspec.json.Decoder(ChatBody).decode
_DECODE_TEXT = msgspec.json.Decoder(TextBody).decode
_SAMPLING = tuple(name for name in SamplingParams.__struct_fields__ if name in WireBody.__struct_fields__)
_STREAMING = Streaming()
_KNOWN: frozenset[str] = frozenset()
"""What `Extension.requires` may name."""


class WireRequest(NamedTuple):
    """What to post, and where. The body is in pieces, so that pictures need not be copied into one."""

    path: str
    pieces: tuple[bytes, ...]

    @property
    def body(self) -> bytes:
        """The whole body."""
        return b"".join(self.pieces)


def encode_request(
    request: GenerateRequest | EncodeRequest, model: str, version: int = CONTRACT_VERSION
) -> WireRequest:
    """Write a call. `model` is the name under which the worker serves, `version` the contract's that it speaks.

    Raises:
        InvalidRequestError: The prompt names an item that is not there, or the schema is not JSON.
    """
    payloads = Payloads()
    try:
        body: ChatBody | TextBody
        if isinstance(request, EncodeRequest):
            body = _encode_body(request, model, payloads)
        else:
            body = _generate_body(request, model, payloads)
        body.chiasm = msgspec.structs.replace(body.chiasm, version=version)
        return WireRequest(CHAT_PATH if isinstance(body, ChatBody) else TEXT_PATH, payloads.spliced(_ENCODE(body)))
    except (OverflowError, UnicodeEncodeError) as error:
        raise InvalidRequestError("A number or a text of the request cannot be written as JSON") from error


def decode_request(path: str, body: bytes) -> GenerateRequest | EncodeRequest:
    """Read a call to `CHAT_PATH` or `TEXT_PATH`. Raises only `InvalidRequestError` or `ContractVersionError`."""
    try:
        fields = _DECODE_CHAT(body) if path == CHAT_PATH else _DECODE_TEXT(body)
    except msgspec.DecodeError as error:
        raise request_fault(error) from error
    except RecursionError as error:
        raise InvalidRequestError("The body is nested too deeply") from error
    check_gateway(fields.chiasm.version, "/chiasm/version")
    if strange := [name for name in fields.chiasm.requires if name not in _KNOWN]:
        raise ContractVersionError(
            f"This worker does not know '{strange[0]}', without which the answer would be another one",
            hint="Upgrade this worker first",
            param="/chiasm/requires",
        )
    if fields.chiasm.task == "encode":
        return EncodeRequest(
            request_id=fields.request_id,
            items=_decoded_items(fields),
            cache_salt=fields.cache_salt,
            timeout_s=fields.chiasm.timeout_s,
        )
    return _generate_request(fields)


def _generate_body(request: GenerateRequest, model: str, payloads: Payloads) -> ChatBody | TextBody:
    sampling, prompt, num_top = request.sampling, request.prompt, request.sampling.num_top_logprobs
    messages = prompt.messages if isinstance(prompt, ChatPrompt) else ()
    places = tuple(part.item for message in messages for part in message.parts if isinstance(part, ItemPart))
    fields = _fields("generate", request, model, places, sampling)
    fields["stream"] = request.stream
    fields["stream_options"] = _STREAMING if request.stream else None
    fields["return_token_ids"] = True
    if sampling.json_schema is not None:
        fields["response_format"] = WireSchemaFormat(WireSchema(_raw_json(sampling.json_schema)))
    if request.hands_over_kv or request.kv is not None:
        fields["kv_transfer_params"] = KvParams(request.hands_over_kv, request.kv is not None, request.kv)
    if not isinstance(prompt, ChatPrompt):
        text = prompt.text if isinstance(prompt, TextPrompt) else prompt.token_ids
        return TextBody(prompt=text, logprobs=num_top, **fields)
    parts = [part_of(item, payloads) for item in request.items]
    return ChatBody(
        messages=tuple(_message(message, parts) for message in messages),
        logprobs=num_top is not None,
        top_logprobs=num_top,
        add_generation_prompt=not prompt.continue_final_message,
        continue_final_message=prompt.continue_final_message,
        **fields,
    )


def _encode_body(request: EncodeRequest, model: str, payloads: Payloads) -> ChatBody:
    fields = _fields("encode", request, model, tuple(range(len(request.items))), SamplingParams())
    content: list[Part] = [part_of(item, payloads) for item in request.items]
    return ChatBody(messages=(WireMessage("user", content),), stream=False, **fields)


def _fields(
    task: str,
    request: GenerateRequest | EncodeRequest,
    model: str,
    places: Sequence[int],
    sampling: SamplingParams,
) -> Fields:
    items, entries = request.items, entries_of(request.items)
    if wrong := [place for place in places if not 0 <= place < len(items)]:
        raise InvalidRequestError(f"The prompt names item {wrong[0]} of {len(items)}")
    bodies = tuple(body_of(item, is_placed=index in places, entries=entries) for index, item in enumerate(items))
    adapter = request.adapter if isinstance(request, GenerateRequest) else None
    extension = Extension(
        task=task,  # type: ignore[arg-type]
        timeout_s=request.timeout_s,
        items=bodies,
        places=tuple(places),
        adapter=adapter,
    )
    return {name: getattr(sampling, name) for name in _SAMPLING} | {
        "model": model if adapter is None else adapter.name,
        "request_id": request.request_id,
        "ec_transfer_params": entries or None,
        "cache_salt": request.cache_salt,
        "chiasm": extension,
    }


def _message(message: Message, parts: Sequence[MediaPart]) -> WireMessage:
    content = [Text(part.text) if isinstance(part, TextPart) else parts[part.item] for part in message.parts]
    if len(content) == 1 and isinstance(content[0], Text):
        return WireMessage(message.role, content[0].text)
    return WireMessage(message.role, content)


def _raw_json(text: str) -> msgspec.Raw:
    """The text as it is. It becomes part of the body, and so must be JSON."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequestError("The schema is not JSON", param="/response_format/json_schema/schema") from error
    return msgspec.Raw(text.encode())


def _generate_request(fields: ChatBody | TextBody) -> GenerateRequest:
    kv = fields.kv_transfer_params or KvParams()
    if kv.do_remote_prefill != (kv.handle is not None):
        raise InvalidRequestError(
            "do_remote_prefill and a handle of keys and values go together", param="/kv_transfer_params"
        )
    return GenerateRequest(
        request_id=fields.request_id,
        prompt=_prompt(fields),
        items=_decoded_items(fields),
        sampling=_sampling(fields),
        stream=fields.stream,
        hands_over_kv=kv.do_remote_decode,
        kv=kv.handle,
        cache_salt=fields.cache_salt,
        adapter=fields.chiasm.adapter,
        timeout_s=fields.chiasm.timeout_s,
    )


def _prompt(fields: ChatBody | TextBody) -> ChatPrompt | TextPrompt | TokensPrompt:
    if isinstance(fields, TextBody):
        return TextPrompt(fields.prompt) if isinstance(fields.prompt, str) else TokensPrompt(fields.prompt)
    places = iter(fields.chiasm.places)  # as many as media parts: `_decoded_items` looks
    messages = []
    for message in fields.messages:
        content = [Text(message.content)] if isinstance(message.content, str) else message.content
        parts = (TextPart(part.text) if isinstance(part, Text) else ItemPart(next(places, -1)) for part in content)
        messages.append(Message(message.role, tuple(parts)))
    return ChatPrompt(tuple(messages), fields.continue_final_message)


def _decoded_items(fields: ChatBody | TextBody) -> tuple[MediaItem, ...]:
    parts, extension = list(_media_parts(fields)), fields.chiasm
    if len(parts) != len(extension.places) or any(place >= len(extension.items) for place in extension.places):
        raise InvalidRequestError("places do not fit the pictures in the messages", param="/chiasm/places")
    entries = fields.ec_transfer_params or {}
    first = dict(reversed(list(zip(extension.places, parts, strict=True))))
    return tuple(item_of(body, first.get(index), entries, index) for index, body in enumerate(extension.items))


def _media_parts(fields: ChatBody | TextBody) -> Iterable[MediaPart]:
    for message in fields.messages if isinstance(fields, ChatBody) else ():
        for part in () if isinstance(message.content, str) else message.content:
            if not isinstance(part, Text):
                yield part


def _sampling(fields: ChatBody | TextBody) -> SamplingParams:
    values = {name: getattr(fields, name) for name in _SAMPLING}
    if isinstance(fields, TextBody):
        values["num_top_logprobs"] = fields.logprobs
    elif fields.logprobs:
        values["num_top_logprobs"] = fields.top_logprobs or 0
    if isinstance(fields.response_format, WireSchemaFormat):
        values["json_schema"] = bytes(fields.response_format.json_schema.schema).decode()
    try:
        return msgspec.convert(values, SamplingParams)
    except msgspec.ValidationError as error:
        raise request_fault(error, rename={"num_top_logprobs": "top_logprobs"}) from error
