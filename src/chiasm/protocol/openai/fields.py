"""What is accepted without effect and what is refused, by name, for each endpoint.

`docs/http_api.md` prints these tables.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from chiasm.errors import InvalidRequestError, UnsupportedFeatureError
from chiasm.protocol.openai.faults import request_fault


class Accepted(NamedTuple):
    """A field that changes nothing here, by its own meaning."""

    type: Any
    why: str


class Refused(NamedTuple):
    """A field that would change the answer if it were honoured. `neutral` are the values that ask for nothing."""

    neutral: tuple[Any, ...]
    hint: str


FieldPolicy = Mapping[str, Accepted | Refused]

_LABEL = Accepted(str | None, "a label for the caller's own records")
_CACHE = Accepted(str | None, "prompts with the same start share a cache without being told")
_TOOLS = "Tool calling is not supported; describe the wanted output with response_format instead"
_STRUCTURED = "Use response_format with a json_schema"
_BEAM = "Only sampling and greedy decoding (temperature 0) are supported"
_INTERNAL = "This belongs to the traffic between stages and is never taken from a client"
_TEMPLATE = "The model's own chat template is used"

_BOTH: FieldPolicy = {
    "user": _LABEL,
    "metadata": Accepted(dict[str, str] | None, "labels for the caller's own records"),
    "safety_identifier": _LABEL,
    "prompt_cache_key": _CACHE,
    "prompt_cache_retention": _CACHE,
    "store": Refused((None, False), "Nothing is stored"),
    "service_tier": Refused((None, "auto", "default"), "There is one service tier"),
    "best_of": Refused((None, 1), "Use n"),
    "use_beam_search": Refused((None, False), _BEAM),
    "length_penalty": Refused((None, 1.0), _BEAM),
    "early_stopping": Refused((None, False), _BEAM),
    "prompt_logprobs": Refused((None,), "Only output tokens have log probabilities"),
    "logits_processors": Refused((None, []), "Use logit_bias"),
    "allowed_token_ids": Refused((None, []), "Use logit_bias or response_format"),
    "bad_words": Refused((None, []), "Use logit_bias"),
    "guided_json": Refused((None,), _STRUCTURED),
    "guided_regex": Refused((None,), _STRUCTURED),
    "guided_choice": Refused((None,), _STRUCTURED),
    "guided_grammar": Refused((None,), _STRUCTURED),
    "structured_outputs": Refused((None,), _STRUCTURED),
    "truncate_prompt_tokens": Refused((None,), "Shorten the prompt; it is never cut silently"),
    "include_stop_str_in_output": Refused((None, False), "The stop string ends the output and is not part of it"),
    "spaces_between_special_tokens": Refused((None, True), "Special tokens are written as the tokenizer has them"),
    "return_token_ids": Refused((None, False), "Ask for logprobs to see tokens"),
    "return_tokens_as_token_ids": Refused((None, False), "Ask for logprobs to see tokens"),
    "add_special_tokens": Refused((None,), "The tokenizer's own rule is used"),
    "cache_salt": Refused((None,), "Cache scopes follow the API key"),
    "ec_transfer_params": Refused((None,), _INTERNAL),
    "kv_transfer_params": Refused((None,), _INTERNAL),
}

CHAT_POLICY: FieldPolicy = {
    **_BOTH,
    "parallel_tool_calls": Accepted(bool | None, "means nothing without tools"),
    "tools": Refused((None, []), _TOOLS),
    "tool_choice": Refused((None, "none", "auto"), _TOOLS),
    "functions": Refused((None, []), _TOOLS),
    "function_call": Refused((None, "none", "auto"), _TOOLS),
    "audio": Refused((None,), "Only text comes out"),
    "modalities": Refused((None, ["text"]), "Only text comes out"),
    "prediction": Refused((None,), "Predicted outputs are not supported"),
    "reasoning_effort": Refused((None, "none"), "Reasoning effort is not adjustable"),
    "verbosity": Refused((None, "medium"), "Ask for shorter or longer answers in the prompt"),
    "web_search_options": Refused((None,), "There is no web search"),
    "chat_template": Refused((None,), _TEMPLATE),
    "chat_template_kwargs": Refused((None, {}), _TEMPLATE),
    "documents": Refused((None, []), "Put documents into a message"),
    "echo": Refused((None, False), "Only new text is returned"),
    "media_io_kwargs": Refused((None, {}), "Say fps or num_frames in mm_processor_kwargs"),
}

COMPLETION_POLICY: FieldPolicy = {
    **_BOTH,
    "mm_processor_kwargs": Refused((None, {}), "A raw prompt has no pictures or videos"),
    "suffix": Refused((None, ""), "Text is only continued, not filled in"),
    "echo": Refused((None, False), "Only new text is returned"),
}

MESSAGE_POLICY: FieldPolicy = {
    "name": Refused((None,), "Write the name into the text; templates here know roles only"),
    "refusal": Refused((None,), "Send what the assistant said as content"),
    "annotations": Refused((None, []), "Send what the assistant said as content"),
    "audio": Refused((None,), "Send what the assistant said as content"),
    "reasoning": Refused((None, ""), "Send what the assistant said as content"),
    "reasoning_content": Refused((None, ""), "Send what the assistant said as content"),
    "tool_calls": Refused((None, []), _TOOLS),
    "tool_call_id": Refused((None,), _TOOLS),
    "function_call": Refused((None,), _TOOLS),
}


def check_field(name: str, value: object, rule: Accepted | Refused, pointer: str) -> None:
    """Raise unless `value` is harmless under `rule`.

    Raises:
        InvalidRequestError: An accepted field has the wrong type.
        UnsupportedFeatureError: A refused field asks for something.
    """
    if isinstance(rule, Accepted):
        try:
            msgspec.convert(value, rule.type)
        except msgspec.ValidationError as error:
            fault = request_fault(error)
            raise InvalidRequestError(f"'{name}': {fault.message}", param=pointer) from error
    elif not any(_is_same(value, neutral) for neutral in rule.neutral):
        raise UnsupportedFeatureError(f"'{name}' is not supported", hint=rule.hint, param=pointer)


def _is_same(value: object, neutral: object) -> bool:
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
