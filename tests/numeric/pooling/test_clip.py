"""A CLIP model with random weights: texts and pictures in one space, against transformers, one input at a time."""

import io

import msgspec
import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoTokenizer, CLIPModel
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from chiasm.errors import (
    ContextLengthError,
    InvalidRequestError,
    MediaError,
    UnsupportedFeatureError,
    UnsupportedMediaError,
    UnsupportedModelError,
)
from chiasm.pooling.model_files import is_pooling_directory, read_pooling_model
from chiasm.protocol.media import LateSource
from chiasm.protocol.pooling.work import ImageInput, PairInput, TextInput
from tests.numeric.pooling.models import build, build_clip
from tests.numeric.pooling.pictures import picture, png
from tests.numeric.pooling.served import served, unit

TEXTS = ["a dog", "a photo of a cat that sleeps on a red chair", "", "a dog"]
SIZES = [(40, 40), (90, 30), (31, 77)]


PICTURES = [png(*size) for size in SIZES]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return build_clip(tmp_path_factory.mktemp("clip") / "m")


@pytest.fixture(scope="module")
def one(directory):
    with served(directory) as worker:
        yield worker


@torch.no_grad()
def wanted(directory):
    """Rows of texts, then of pictures, of transformers' own model, tokenizer and image processor."""
    model, tokenizer = CLIPModel.from_pretrained(directory), AutoTokenizer.from_pretrained(directory)
    processor = CLIPImageProcessorPil.from_pretrained(directory)
    rows = [model.get_text_features(**tokenizer(text, return_tensors="pt")).pooler_output[0] for text in TEXTS]
    for data in PICTURES:
        pixels = processor(Image.open(io.BytesIO(data)), return_tensors="pt")
        rows.append(model.get_image_features(**pixels).pooler_output[0])
    return [row.numpy() for row in rows]


def test_texts_and_pictures_of_one_request_are_those_of_transformers(one, directory):
    assert one.worker.pooling.takes_images
    assert one.worker.pooling.width == 24
    inputs = [*map(TextInput, TEXTS), *map(picture, PICTURES, SIZES)]
    order = [6, 0, 4, 1, 5, 2, 3]  # kinds are mixed in the request
    raw = one.values("embed", [inputs[index] for index in order], normalize=False)
    units = one.values("embed", [inputs[index] for index in order])
    rows = wanted(directory)
    assert np.abs(rows[4] - rows[5]).max() > 0.1, "pictures that come to the same would prove nothing"
    for index, found, found_unit in zip(order, raw, units, strict=True):
        np.testing.assert_allclose(found, rows[index], rtol=0, atol=1e-5)
        np.testing.assert_allclose(found_unit, unit(rows[index]), rtol=0, atol=1e-5)


def test_a_picture_comes_to_the_same_alone_and_in_a_batch_and_counts_its_patches(one):
    inputs = [picture(data, size) for data, size in zip(PICTURES, SIZES, strict=True)]
    together = one.pool("embed", [*inputs, inputs[0]])
    assert together[0].values is together[3].values, "computed once"
    assert {output.num_tokens for output in together} == {16}
    for output, alone in zip(together, inputs, strict=False):
        np.testing.assert_allclose(output.values, one.values("embed", [alone])[0], rtol=0, atol=1e-6)


def test_packed_texts_may_be_longer_together_than_one_may_be(one):
    texts = [f"a text with the number {number}, and of some length" for number in range(8)]
    together = one.values("embed", map(TextInput, texts))
    for row, text in zip(together, texts, strict=True):
        np.testing.assert_allclose(row, one.values("embed", [TextInput(text)])[0], rtol=0, atol=1e-6)
    with pytest.raises(ContextLengthError) as caught:
        one.pool("embed", [picture(PICTURES[0], SIZES[0]), TextInput("long " * 40)])
    assert caught.value.item == 1


def test_a_broken_picture_is_refused_with_its_number_among_the_pictures_and_harms_nobody(one):
    broken = picture(PICTURES[0][:200], SIZES[0])
    with pytest.raises(MediaError, match="Media item 1") as caught:
        one.pool("embed", [TextInput("a"), picture(PICTURES[1], SIZES[1]), TextInput("b"), broken])
    assert caught.value.item == 1
    assert len(one.values("embed", [picture(PICTURES[0], SIZES[0])])[0]) == 24


def test_a_picture_whose_embedding_is_to_follow_is_refused(one):
    late = msgspec.structs.replace(picture(PICTURES[0], SIZES[0]).item, source=LateSource())
    with pytest.raises(UnsupportedFeatureError, match="media, not embeddings"):
        one.pool("embed", [ImageInput(late)])


def test_pictures_are_refused_where_they_mean_nothing(one, tmp_path):
    with pytest.raises(InvalidRequestError, match="token_embed") as caught:
        one.pool("token_embed", [TextInput("a"), picture(PICTURES[0], SIZES[0])])
    assert caught.value.item == 1
    [score] = one.values("score", [PairInput("a dog", "a dog")])
    assert score == pytest.approx(1.0, abs=1e-6)
    with served(build(tmp_path / "m", "bert")) as texts:
        assert not texts.worker.pooling.takes_images
        with pytest.raises(UnsupportedMediaError, match="no pictures"):
            texts.pool("embed", [picture(PICTURES[0], SIZES[0])])


def test_a_dual_encoder_is_recognised_and_is_for_embeddings_only(directory):
    assert is_pooling_directory(directory)
    with pytest.raises(UnsupportedModelError, match="clip model is an embedder"):
        read_pooling_model(directory, "sequence_classifier")
