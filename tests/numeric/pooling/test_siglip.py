"""A SigLIP model with random weights against transformers: embeddings, and the sigmoid of their similarity."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoTokenizer, SiglipModel
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from chiasm.errors import ContextLengthError
from chiasm.protocol.pooling.work import MediaPairInput, PairInput, TextInput, TokensInput
from tests.numeric.pooling.models import build_siglip
from tests.numeric.pooling.pictures import picture, png
from tests.numeric.pooling.served import served, unit

TEXTS = ["a dog", "a cat on a red chair", "", "a dog", "x" * 22]
SIZES = [(40, 40), (90, 30)]
PICTURES = [png(*size, seed) for seed, size in enumerate(SIZES)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return build_siglip(tmp_path_factory.mktemp("siglip") / "m")


@pytest.fixture(scope="module")
def one(directory):
    with served(directory) as worker:
        yield worker


@pytest.fixture(scope="module")
@torch.no_grad()
def reference(directory):
    """transformers' own output for all texts and pictures, each text filled up as the model was trained."""
    model, tokenizer = SiglipModel.from_pretrained(directory).eval(), AutoTokenizer.from_pretrained(directory)
    texts = tokenizer(TEXTS, padding="max_length", max_length=24, return_tensors="pt")
    processor = SiglipImageProcessorPil.from_pretrained(directory)
    pixels = processor([Image.open(io.BytesIO(data)) for data in PICTURES], return_tensors="pt")
    return model(input_ids=texts["input_ids"], pixel_values=pixels["pixel_values"])


def test_texts_and_pictures_are_those_of_transformers(one, reference):
    assert (one.worker.pooling.width, one.worker.pooling.takes_images) == (32, True)
    inputs = [*map(TextInput, TEXTS), *map(picture, PICTURES, SIZES)]
    order = [6, 0, 4, 1, 5, 2, 3]
    wanted = [*reference.text_model_output.pooler_output, *reference.vision_model_output.pooler_output]
    found = one.values("embed", [inputs[index] for index in order], normalize=False)
    for index, row in zip(order, found, strict=True):
        np.testing.assert_allclose(row, wanted[index].numpy(), rtol=0, atol=1e-5)
    units = one.values("embed", inputs)
    np.testing.assert_allclose(units[5], unit(wanted[5].numpy()), rtol=0, atol=1e-5)
    assert np.abs(units[0] - units[1]).max() > 0.01, "texts that come to the same would prove nothing"


def test_scores_are_the_models_probabilities(one, reference):
    pairs = [(text, number) for text in range(len(TEXTS)) for number in range(len(PICTURES))]
    items = [picture(data, size).item for data, size in zip(PICTURES, SIZES, strict=True)]
    inputs = [MediaPairInput(TEXTS[text], items[number]) for text, number in pairs]
    logits = [float(reference.logits_per_text[text, number]) for text, number in pairs]
    assert np.ptp(logits) > 0.1
    raw = [float(row[0]) for row in one.values("score", inputs, activate=False)]
    assert raw == pytest.approx(logits, abs=1e-5)
    scores = [float(row[0]) for row in one.values("score", inputs)]
    assert scores == pytest.approx(list(1 / (1 + np.exp(-np.array(logits)))), abs=1e-5)
    turned = MediaPairInput(items[0], TEXTS[1])
    assert float(one.values("score", [turned])[0][0]) == pytest.approx(scores[2], abs=1e-6)


def test_two_texts_are_compared_by_their_cosine(one, reference):
    [score] = one.values("score", [PairInput(TEXTS[0], TEXTS[1])])
    assert float(score[0]) == pytest.approx(float(reference.text_embeds[0] @ reference.text_embeds[1]), abs=1e-5)


def test_a_text_comes_to_the_same_alone_and_in_a_batch(one):
    together = one.values("embed", map(TextInput, TEXTS))
    for row, text in zip(together, TEXTS, strict=True):
        np.testing.assert_allclose(row, one.values("embed", [TextInput(text)])[0], rtol=0, atol=1e-6)


def test_lengths(one):
    """Every text is as long as the model was trained for; ids are filled up like texts."""
    assert {output.num_tokens for output in one.pool("embed", map(TextInput, TEXTS))} == {24}
    with pytest.raises(ContextLengthError):
        one.pool("embed", [TextInput("long " * 10)])
    [cut] = one.pool("embed", [TextInput("long " * 10)], truncate="end")
    assert (cut.is_truncated, cut.num_tokens) == (True, 24)
    [ids] = one.values("embed", [TokensInput((1, 70, 71, 2))])
    assert ids.shape == (32,)


def test_in_bfloat16_scale_and_bias_stay_exact(directory, reference):
    """Their rounding would move every score; that of the towers is within bfloat16's own."""
    with served(directory, engine__dtype="bfloat16") as coarse:
        assert coarse.worker._reader._similarity.scale == pytest.approx(np.exp(1.503), rel=1e-6)
        item = picture(PICTURES[0], SIZES[0]).item
        [logit] = coarse.values("score", [MediaPairInput(TEXTS[0], item)], activate=False)
    assert float(logit[0]) == pytest.approx(float(reference.logits_per_text[0, 0]), abs=0.1)
