"""Text completion requests to plans."""

import json

import pytest

from chiasm.errors import InvalidRequestError, UnsupportedFeatureError
from chiasm.gateway.openai.completions import CompletionDialect
from chiasm.protocol.generation import TextPrompt, TokensPrompt


def plan(prompt, **fields):
    return CompletionDialect().plan(json.dumps({"prompt": prompt, **fields}).encode())


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", (TextPrompt("a"),)),
        ("", (TextPrompt(""),)),
        (["a", "b"], (TextPrompt("a"), TextPrompt("b"))),
        ([1, 2], (TokensPrompt((1, 2)),)),
        ([[1], [2, 3]], (TokensPrompt((1,)), TokensPrompt((2, 3)))),
    ],
)
def test_the_forms_of_a_prompt(prompt, prompts):
    assert plan(prompt).prompts == prompts


@pytest.mark.parametrize(
    "prompt",
    [[], [[]], ["a", 1], [1, [2]], ["a", ["b"]], [["a"]], [-1], [2**31], None, 5, {"text": "a"}, [[1], []], [True]],
)
def test_other_forms_are_refused(prompt):
    with pytest.raises(InvalidRequestError) as caught:
        plan(prompt)
    assert caught.value.param.startswith("/prompt")


def test_defaults_of_the_api():
    assert plan("a").sampling.max_tokens == 16
    assert plan("a", max_tokens=None).sampling.max_tokens is None
    assert plan("a", logprobs=3).sampling.num_top_logprobs == 3


def test_choices_are_bounded_over_all_prompts():
    assert plan(["a"] * 64, n=2).num_choices == 128
    with pytest.raises(InvalidRequestError, match="128 choices"):
        plan(["a"] * 65, n=2)


@pytest.mark.parametrize("fields", [{"echo": True}, {"suffix": "x"}, {"best_of": 2}])
def test_unsupported_parts_are_refused(fields):
    with pytest.raises(UnsupportedFeatureError):
        plan("a", **fields)


def test_chat_fields_are_unknown_here():
    with pytest.raises(InvalidRequestError, match="Unknown field 'messages'"):
        plan("a", messages=[])
