"""What is possible is said where a word is none of it."""

from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

from chiasm.errors import InvalidRequestError, InvalidSettingError
from chiasm.protocol.openai.chat import ChatCompletionRequest
from chiasm.protocol.openai.decode import decode_request
from chiasm.protocol.pooling.embeddings import CohereEmbedRequest, EmbeddingRequest
from chiasm.settings import resolve
from chiasm.settings.choices import choices_at


class Cat(msgspec.Struct, tag="cat"):
    mood: Literal["good", "bad"] | None = None


class Dog(msgspec.Struct, tag="dog"):
    pass


class Home(msgspec.Struct):
    pets: Annotated[list[Cat | Dog], Meta(max_length=3)] = []


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (("pets", "0", "type"), ("cat", "dog")),
        (("pets", "2", "mood"), ("bad", "good")),
        (("pets",), ()),
        (("nothing", "0"), ()),
    ],
)
def test_words_are_those_of_the_place(steps, words):
    assert choices_at(Home, steps) == words


def test_a_setting_says_what_it_may_be():
    with pytest.raises(InvalidSettingError) as caught:
        resolve(overrides=["routing.topology=star"])
    assert caught.value.hint == "One of: 'agg', 'auto', 'e-p-d', 'e-pd', 'local'"
    with pytest.raises(InvalidSettingError) as caught:
        resolve(overrides=["gateway.port=-1"])
    assert caught.value.hint is None


@pytest.mark.parametrize(
    ("kind", "body", "hint"),
    [
        (EmbeddingRequest, b'{"input": "a", "encoding_format": "half"}', "One of: 'base64', 'float'"),
        (CohereEmbedRequest, b'{"texts": ["a"], "embedding_types": ["float", "int8"]}', "One of: 'base64', 'float'"),
        (ChatCompletionRequest, b'{"messages": [{"role": "user", "content": [{"type": "noise"}]}]}', "'text'"),
    ],
)
def test_a_request_is_told_what_it_may_send(kind, body, hint):
    with pytest.raises(InvalidRequestError) as caught:
        decode_request(body, kind, {}, ())
    assert hint in caught.value.hint
    assert "half" not in caught.value.message + caught.value.hint
