"""Fields that chat and text completions share, and how they become `SamplingParams`."""

from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from chiasm.errors import InvalidRequestError, UnsupportedFeatureError
from chiasm.protocol.generation import SamplingParams
from chiasm.protocol.openai.faults import request_fault

MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 256

Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_ANY_OBJECT = '{"type":"object"}'
_FORMAT = "/response_format"
_REQUEST_NAMES = {"num_top_logprobs": "top_logprobs"}
"""Where a field of `SamplingParams` has another name in the request."""


class JsonSchema(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A named schema. `strict` is accepted either way: output is always held to the schema."""

    name: str
    description: str | None = None
    schema: msgspec.Raw
    strict: bool | None = None


class TextFormat(msgspec.Struct, tag="text", tag_field="type", forbid_unknown_fields=True):
    """Free text."""


class JsonObjectFormat(msgspec.Struct, tag="json_object", tag_field="type", forbid_unknown_fields=True):
    """Any JSON object."""


class JsonSchemaFormat(msgspec.Struct, tag="json_schema", tag_field="type", forbid_unknown_fields=True):
    """JSON that satisfies a schema."""

    json_schema: JsonSchema


class GrammarFormat(msgspec.Struct, tag="grammar", tag_field="type"):
    """Recognised and refused."""


class StructuralTagFormat(msgspec.Struct, tag="structural_tag", tag_field="type"):
    """Recognised and refused."""


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat | GrammarFormat | StructuralTagFormat


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`include_usage` adds a last chunk with token counts. The others only exist to be turned off."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None
    continuous_usage_stats: Literal[False] | None = None


class ChiasmOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Chiasm's own request fields: the stage receipt in the response, a shorter deadline."""

    receipt: bool = False
    timeout_s: Annotated[float, Meta(gt=0)] | None = None


class SamplingFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of both request types. Null means the default. `top_k`, -1 and 0, takes all tokens."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    seed: Seed | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Annotated[int, Meta(ge=0)]] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    priority: int | None = None
    response_format: ResponseFormat | None = None
    chiasm: ChiasmOptions | None = None


_LISTED = ("logit_bias", "stop", "stop_token_ids")
_NUMBERS = tuple(
    name
    for name in SamplingFields.__struct_fields__
    if name in SamplingParams.__struct_fields__ and name not in _LISTED
)
_numbers = attrgetter(*_NUMBERS)
_KEPT_COMBINATIONS = 512


def sampling_params(fields: SamplingFields, *, max_tokens: int | None, num_top_logprobs: int | None) -> SamplingParams:
    """Check ranges and combinations; raise `InvalidRequestError` naming the request's own field."""
    stop, json_schema = _stop_strings(fields.stop), _json_schema(fields.response_format)
    params = _checked(_numbers(fields), max_tokens, num_top_logprobs)
    if not (stop or json_schema or fields.logit_bias or fields.stop_token_ids):
        return params
    return msgspec.structs.replace(
        params,
        stop=tuple(stop),
        json_schema=json_schema,
        logit_bias=fields.logit_bias or {},
        stop_token_ids=tuple(fields.stop_token_ids or ()),
    )


@lru_cache(maxsize=_KEPT_COMBINATIONS)
def _checked(numbers: tuple[Any, ...], max_tokens: int | None, num_top_logprobs: int | None) -> SamplingParams:
    """Parameters of numbers alone. Callers send few combinations, and checking one costs more than the rest of them."""
    values: dict[str, Any] = {name: value for name, value in zip(_NUMBERS, numbers, strict=True) if value is not None}
    if values.get("top_k") == -1:
        values["top_k"] = 0
    if max_tokens is not None:
        values["max_tokens"] = max_tokens
    if num_top_logprobs is not None:
        values["num_top_logprobs"] = num_top_logprobs
    try:
        params = msgspec.convert(values, SamplingParams)
    except msgspec.ValidationError as error:
        raise request_fault(error, rename=_REQUEST_NAMES) from error
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise InvalidRequestError(
            f"min_tokens {params.min_tokens} is more than max_tokens {params.max_tokens}", param="/min_tokens"
        )
    return params


def _stop_strings(stop: str | list[str] | None) -> list[str]:
    strings = [stop] if isinstance(stop, str) else stop or []
    if len(strings) > MAX_STOP_STRINGS:
        raise InvalidRequestError(f"{len(strings)} stop strings; at most {MAX_STOP_STRINGS}", param="/stop")
    for text in strings:
        if not 0 < len(text) <= MAX_STOP_CHARACTERS:
            raise InvalidRequestError(
                f"A stop string of {len(text)} characters; 1 to {MAX_STOP_CHARACTERS} are possible", param="/stop"
            )
    return strings


def _json_schema(response_format: ResponseFormat | None) -> str | None:
    match response_format:
        case JsonObjectFormat():
            return _ANY_OBJECT
        case JsonSchemaFormat(json_schema=wanted):
            return _schema_text(wanted.schema)
        case GrammarFormat() | StructuralTagFormat():
            raise UnsupportedFeatureError(
                "This response_format is not supported", hint="Use text, json_object or json_schema", param=_FORMAT
            )
    return None


def _schema_text(schema: msgspec.Raw) -> str:
    text = bytes(schema).decode()
    if not text.startswith("{"):
        raise InvalidRequestError("The schema is not a JSON object", param=f"{_FORMAT}/json_schema/schema")
    return text
