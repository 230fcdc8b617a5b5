"""Where tokens stand in their texts, as Hugging Face says it, with a real tokenizer."""

import pytest
from msgspec.structs import replace
from transformers import AutoTokenizer

from chiasm.engines.pooling.tokens import InputTokenizer
from chiasm.errors import InvalidRequestError
from chiasm.pooling.model_files import read_pooling_model
from chiasm.protocol.pooling.work import PairInput, PoolParams, TextInput
from tests.numeric.minilm import directory

REVIEW = "The food was gréat \U0001f600, but the service [SEP] awful."


@pytest.fixture(scope="module")
def tokenizer():
    model = read_pooling_model(directory())
    return InputTokenizer(directory(), model, max_tokens=model.max_tokens)


def places(tokenizer, one, **params):
    (encoded,) = tokenizer.encode([one], PoolParams(with_offsets=True, **params))
    return [(place.text, place.start, place.end) for place in encoded.places]


def expected(*texts, **options):
    encoded = AutoTokenizer.from_pretrained(directory())(*texts, return_offsets_mapping=True, **options)
    found = zip(encoded.sequence_ids(0), encoded["offset_mapping"], strict=True)
    return [(-1 if text is None else text, *where) for text, where in found]


@pytest.mark.parametrize("aspect", ["food", REVIEW, "the service"])
def test_tokens_of_a_pair(tokenizer, aspect):
    assert places(tokenizer, PairInput(REVIEW, aspect)) == expected(REVIEW, aspect)


def test_tokens_of_a_pair_that_is_cut(tokenizer):
    found = places(tokenizer, PairInput(REVIEW * 3, "food"), truncate="end", max_tokens=20)
    assert found == expected(REVIEW * 3, "food", truncation=True, max_length=20)


def test_tokens_of_one_text(tokenizer):
    assert places(tokenizer, TextInput(REVIEW)) == expected(REVIEW)


def test_without_special_tokens_all_are_the_text_s(tokenizer):
    found = places(tokenizer, TextInput("one two"), add_special_tokens=False)
    assert found == [(0, 0, 3), (0, 4, 7)]


def test_words_that_a_model_has_no_weights_for_are_refused_and_not_computed_with():
    model = replace(read_pooling_model(directory()), vocabulary_size=2000)
    tokenizer = InputTokenizer(directory(), model, max_tokens=model.max_tokens)
    tokenizer.encode([TextInput("a")], PoolParams())
    with pytest.raises(InvalidRequestError, match="not below the 2000") as caught:
        tokenizer.encode([TextInput("a"), TextInput("the restaurant")], PoolParams())
    assert caught.value.item == 1
