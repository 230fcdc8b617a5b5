"""Request fields to `SamplingParams`."""

import json

import pytest

from chiasm.errors import InvalidRequestError, UnsupportedFeatureError
from chiasm.protocol.generation import SamplingParams
from chiasm.protocol.openai.chat import NESTED_NAMES, ChatCompletionRequest
from chiasm.protocol.openai.decode import decode_request
from chiasm.protocol.openai.fields import CHAT_POLICY
from chiasm.protocol.openai.sampling import sampling_params


def params(max_tokens=None, num_top_logprobs=None, **fields):
    body = json.dumps({"messages": [{"role": "user", "content": "x"}], **fields}).encode()
    request = decode_request(body, ChatCompletionRequest, CHAT_POLICY, NESTED_NAMES)
    return sampling_params(request, max_tokens=max_tokens, num_top_logprobs=num_top_logprobs)


def test_defaults_are_the_worker_contracts():
    assert params() == SamplingParams()


def test_null_means_the_default():
    names = ["temperature", "top_p", "top_k", "n", "stop", "seed", "logit_bias", "min_tokens", "response_format"]
    assert params(**dict.fromkeys(names)) == SamplingParams()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0.3),
        ("top_p", 0.5),
        ("top_k", 7),
        ("min_p", 0.1),
        ("presence_penalty", -1.5),
        ("frequency_penalty", 2.0),
        ("repetition_penalty", 1.2),
        ("logit_bias", {5: -100.0}),
        ("seed", -3),
        ("min_tokens", 4),
        ("ignore_eos", True),
        ("priority", -3),
        ("skip_special_tokens", False),
        ("n", 3),
    ],
)
def test_each_field_arrives_under_its_name(name, value):
    sent = {str(key): bias for key, bias in value.items()} if isinstance(value, dict) else value
    assert getattr(params(**{name: sent}), name) == value


def test_sequences_arrive_as_tuples():
    assert params(stop="x").stop == ("x",)
    assert params(stop=["x", "y"]).stop == ("x", "y")
    assert params(stop_token_ids=[1, 2]).stop_token_ids == (1, 2)


def test_both_ways_of_switching_top_k_off():
    assert params(top_k=-1).top_k == params(top_k=0).top_k == 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -0.1}, "/temperature"),
        ({"top_p": 0}, "/top_p"),
        ({"top_p": 1.1}, "/top_p"),
        ({"top_k": -2}, "/top_k"),
        ({"n": 0}, "/n"),
        ({"n": 129}, "/n"),
        ({"presence_penalty": 2.1}, "/presence_penalty"),
        ({"repetition_penalty": 0}, "/repetition_penalty"),
        ({"min_tokens": -1}, "/min_tokens"),
        ({"max_tokens": 0}, "/max_tokens"),
        ({"num_top_logprobs": 21}, "/top_logprobs"),
        ({"max_tokens": 3, "min_tokens": 4}, "/min_tokens"),
        ({"stop": ""}, "/stop"),
        ({"stop": ["a"] * 17}, "/stop"),
        ({"stop": "a" * 257}, "/stop"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": [1]}}},
         "/response_format/json_schema/schema"),
    ],
)  # fmt: skip
def test_out_of_range_values_name_the_requests_field(fields, param):
    with pytest.raises(InvalidRequestError) as caught:
        params(**fields)
    assert caught.value.param == param


def test_response_formats():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    named = {"name": "s", "schema": schema, "strict": True, "description": "d"}
    assert params(response_format={"type": "text"}).json_schema is None
    assert json.loads(params(response_format={"type": "json_object"}).json_schema) == {"type": "object"}
    assert json.loads(params(response_format={"type": "json_schema", "json_schema": named}).json_schema) == schema


@pytest.mark.parametrize("kind", ["grammar", "structural_tag"])
def test_other_response_formats_are_refused(kind):
    with pytest.raises(UnsupportedFeatureError) as caught:
        params(response_format={"type": kind, "grammar": "..."})
    assert caught.value.param == "/response_format"
