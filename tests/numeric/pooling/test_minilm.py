"""A real sentence model: equal to Hugging Face, and to itself whatever the company."""

import numpy as np
import pytest
from transformers import AutoModel, AutoTokenizer

from chiasm.protocol.pooling.work import PairInput, TextInput, TokensInput
from tests.numeric.minilm import directory
from tests.numeric.pooling.served import TEXTS, hidden_states, served, unit


@pytest.fixture(scope="module")
def minilm():
    with served(directory()) as one:
        yield one


@pytest.fixture(scope="module")
def reference():
    """What sentence-transformers computes: mean of the last hidden states, then length one."""
    model, tokenizer = AutoModel.from_pretrained(directory()), AutoTokenizer.from_pretrained(directory())
    states = [hidden_states(model, tokenizer, text).numpy() for text in TEXTS]
    return states, [unit(rows.mean(0)) for rows in states]


def inputs(texts=TEXTS):
    return [TextInput(text) for text in texts]


def test_embeddings_equal_hugging_face(minilm, reference):
    for found, wanted in zip(minilm.values("embed", inputs()), reference[1], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


def test_token_embeddings_equal_hugging_face(minilm, reference):
    found = minilm.values("token_embed", inputs(), normalize=False)
    for rows, wanted in zip(found, reference[0], strict=True):
        np.testing.assert_allclose(rows, wanted, rtol=0, atol=1e-4)  # not of length one: values up to 5


def test_a_batch_equals_its_texts_alone(minilm):
    together = minilm.values("embed", inputs())
    for text, row in zip(TEXTS, together, strict=True):
        np.testing.assert_allclose(minilm.values("embed", [TextInput(text)])[0], row, rtol=0, atol=1e-6)


def test_the_same_text_twice_is_the_same_to_the_last_bit(minilm):
    rows = minilm.values("embed", inputs())
    assert (rows[0] == rows[3]).all()


def test_raw_token_ids_equal_their_text(minilm):
    ids = AutoTokenizer.from_pretrained(directory())(TEXTS[0]).input_ids
    text, tokens = minilm.values("embed", [TextInput(TEXTS[0]), TokensInput(tuple(ids))])
    np.testing.assert_allclose(text, tokens, rtol=0, atol=1e-6)


def test_fewer_dimensions_are_cut_and_then_normalized(minilm, reference):
    found = minilm.values("embed", [TextInput(TEXTS[0])], dimensions=64)[0]
    np.testing.assert_allclose(found, unit(reference[1][0][:64]), rtol=0, atol=1e-5)


def test_scores_are_cosines(minilm, reference):
    scores = minilm.values("score", [PairInput(TEXTS[0], text) for text in TEXTS])
    cosines = [float(reference[1][0] @ row) for row in reference[1]]
    np.testing.assert_allclose([score[0] for score in scores], cosines, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("truncate", "side"), [("end", "right"), ("start", "left")])
def test_cut_texts_equal_hugging_face(minilm, truncate, side):
    tokenizer = AutoTokenizer.from_pretrained(directory(), truncation_side=side)
    kept = tokenizer(TEXTS[1], truncation=True, max_length=20).input_ids
    cut, wanted = minilm.pool("embed", [TextInput(TEXTS[1])], truncate=truncate, max_tokens=20) + minilm.pool(
        "embed", [TokensInput(tuple(kept))]
    )
    assert (cut.is_truncated, cut.num_tokens) == (True, 20)
    np.testing.assert_allclose(cut.values, wanted.values, rtol=0, atol=1e-6)


def test_a_text_has_the_same_bits_in_any_company(minilm):
    """Products, attention and pooling compute a row without looking at how many there are."""
    texts = [f"{'word ' * (n % 17)}number {n}" for n in range(60)]
    together = minilm.values("embed", inputs(texts))
    for text, row in list(zip(texts, together, strict=True))[::7]:
        assert (minilm.values("embed", [TextInput(text)])[0] == row).all()
