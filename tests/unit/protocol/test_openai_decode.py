"""Every name in a request is honoured, accepted, refused or unknown; nothing is dropped."""

import json

import msgspec
import pytest

from chiasm.errors import InvalidRequestError, UnsupportedFeatureError
from chiasm.protocol.openai.chat import NESTED_NAMES, ChatCompletionRequest
from chiasm.protocol.openai.completions import CompletionRequest
from chiasm.protocol.openai.decode import decode_request
from chiasm.protocol.openai.fields import CHAT_POLICY, COMPLETION_POLICY, MESSAGE_POLICY, Accepted, Refused

USER = {"role": "user", "content": "hi"}


def decode(**fields):
    body = json.dumps({"messages": [USER], **fields}).encode()
    return decode_request(body, ChatCompletionRequest, CHAT_POLICY, NESTED_NAMES)


def refusal(**fields):
    with pytest.raises(InvalidRequestError) as caught:
        decode(**fields)
    return caught.value


def test_policies_and_types_do_not_overlap():
    assert not set(CHAT_POLICY) & set(ChatCompletionRequest.__struct_fields__)
    assert not set(COMPLETION_POLICY) & set(CompletionRequest.__struct_fields__)


REFUSED = [
    (kind, policy, name, rule)
    for kind, policy in ((ChatCompletionRequest, CHAT_POLICY), (CompletionRequest, COMPLETION_POLICY))
    for name, rule in policy.items()
    if isinstance(rule, Refused)
]
REQUIRED = {ChatCompletionRequest: {"messages": [USER]}, CompletionRequest: {"prompt": "hi"}}


@pytest.mark.parametrize(
    ("kind", "policy", "name", "rule"), REFUSED, ids=lambda value: getattr(value, "__name__", None)
)
def test_refused_fields_pass_at_their_neutral_values_only(kind, policy, name, rule):
    for neutral in rule.neutral:
        decode_request(json.dumps({**REQUIRED[kind], name: neutral}).encode(), kind, policy, ())
    for asking in ({"x": 1}, "something", 7, [1], True):
        if any(asking == neutral for neutral in rule.neutral):
            continue
        body = json.dumps({**REQUIRED[kind], name: asking}).encode()
        with pytest.raises(UnsupportedFeatureError) as caught:
            decode_request(body, kind, policy, ())
        assert caught.value.param == f"/{name}"
        assert caught.value.hint == rule.hint
        assert "something" not in caught.value.message


ACCEPTED = [(name, rule) for name, rule in CHAT_POLICY.items() if isinstance(rule, Accepted)]


@pytest.mark.parametrize(("name", "rule"), ACCEPTED)
def test_accepted_fields_change_nothing_and_are_type_checked(name, rule):
    valid = {bool | None: True, dict[str, str] | None: {"a": "b"}, str | None: "me"}[rule.type]
    assert msgspec.structs.asdict(decode(**{name: valid})) == msgspec.structs.asdict(decode())
    assert refusal(**{name: 3.5}).param == f"/{name}"


def test_message_fields_that_clients_echo_are_all_declared():
    from chiasm.protocol.openai.chat import ChatMessage

    assert set(MESSAGE_POLICY) == set(ChatMessage.__struct_fields__) - {"role", "content"}


@pytest.mark.parametrize(
    ("fields", "hint", "param"),
    [
        ({"max_token": 3}, "Did you mean 'max_tokens'?", "/max_token"),
        ({"temprature": 1}, "Did you mean 'temperature'?", "/temprature"),
        ({"tool": []}, "Did you mean 'tools'?", "/tool"),
        ({"qqqqqq": 1}, "docs/http_api.md", "/qqqqqq"),
        ({"stream": True, "stream_options": {"include_usag": True}}, "'include_usage'", "/stream_options/include_usag"),
        ({"messages": [{"role": "user", "contents": "x"}]}, "'content'", "/messages/0/contents"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest_one(fields, hint, param):
    error = refusal(**fields)
    assert hint in error.hint
    assert error.param == param
    assert error.message.startswith("Unknown field")


def test_an_unknown_name_is_echoed_short_and_printable():
    error = refusal(**{"a\x1b[31m" + "b" * 500: 1})
    assert "\x1b" not in error.message
    assert len(error.message) < 100


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b'{"messages": [{"role": "user", "content": "\xff"}]}', "not valid JSON"),
        (b"[]", "Expected `object`"),
        (b"null", "Expected `object`"),
        (b'"text"', "Expected `object`"),
        (b"{}", "missing required field `messages`"),
        (b'{"messages": []}', "length >= 1"),
        (b'{"messages": null}', "Expected `array`"),
        (b'{"messages": [{"role": "user", "content": "a"}], "tools": ' + b"[" * 100_000, None),
        (b'{"tools": ' + b"[" * 3000 + b"]" * 3000 + b', "messages": [{"role": "user", "content": "a"}]}', None),
    ],
)
def test_broken_bodies_are_refused(body, message):
    with pytest.raises((InvalidRequestError, UnsupportedFeatureError), match=message):
        decode_request(body, ChatCompletionRequest, CHAT_POLICY, NESTED_NAMES)


@pytest.mark.parametrize(
    "text", [rb"\ud800", rb"\ud800 and more", rb"\udc00", rb"\ud800\u0041", rb"a\\\uDBff.", rb"\ud800\n"]
)
def test_half_a_character_is_called_so(text):
    body = b'{"messages": [{"role": "user", "content": "' + text + b'"}]}'
    with pytest.raises(InvalidRequestError, match="half of a character"):
        decode_request(body, ChatCompletionRequest, CHAT_POLICY, NESTED_NAMES)


@pytest.mark.parametrize("text", [rb"\ud83d\ude00", rb"\\ud800 ", rb"\ud83d", rb"\ud83d\u", rb"\ud83d\ude0", b"x"])
def test_what_was_cut_off_is_not(text):
    with pytest.raises(InvalidRequestError, match="truncated"):
        decode_request(b'{"messages": [{"content": "' + text, ChatCompletionRequest, CHAT_POLICY, NESTED_NAMES)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "hot"}, "/temperature"),
        ({"messages": [USER, {"role": "user", "content": 5}]}, "/messages/1/content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "/messages/0/content/0"),
        ({"messages": [{"role": "user", "content": [{"type": "picture"}]}]}, "/messages/0/content/0/type"),
        ({"logit_bias": {"5": 101}}, "/logit_bias"),
        ({"logit_bias": {"word": 1}}, "/logit_bias"),
        ({"seed": 2**80}, "/seed"),
        ({"chiasm": {"timeout_s": 0}}, "/chiasm/timeout_s"),
        ({"stream_options": {"include_obfuscation": True}}, "/stream_options/include_obfuscation"),
        ({"response_format": {"type": "xml"}}, "/response_format/type"),
        ({"stop": [1]}, "/stop/0"),
    ],
)
def test_wrong_values_are_refused_with_a_pointer(fields, param):
    assert refusal(**fields).param == param


def test_values_are_never_repeated_in_errors():
    url = "https://secret.example/?signature=abc"
    content = [{"type": "image_url", "image_url": {"url": "x", "detail": url}}]
    for fields in (
        {"messages": [{"role": "user", "content": content}]},
        {"messages": [{"role": "user", "content": [{"type": url}]}]},
        {"response_format": {"type": url}},
        {"temperature": url},
    ):
        error = refusal(**fields)
        assert "secret" not in error.message + str(error.hint)


def test_a_large_body_with_an_accepted_field_is_decoded_unchanged():
    url = "data:image/png;base64," + "A" * 2_000_000
    content = [{"type": "image_url", "image_url": {"url": url}}]
    request = decode(messages=[{"role": "user", "content": content}], user="me")
    assert request.messages[0].content[0].image_url.url == url
