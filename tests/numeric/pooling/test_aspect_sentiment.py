"""The joint model of aspects in the embedded engine, with MiniLM's weights, against plain products."""

import json

import pytest
from safetensors.torch import load_file, save_file

from chiasm.engines.pooling.reference import HuggingFaceReference
from chiasm.errors import EngineStartError, UnsupportedModelError
from chiasm.pooling.io.absa import AspectSentiment
from chiasm.pooling.model_files import read_pooling_model
from chiasm.protocol.pooling.work import PairInput, TextInput
from tests.numeric.pooling.served import served
from tests.vllm.pooling_models import LABELS, aspect_probabilities, aspect_sentiment

PAIRS = [
    ("The food was great but the service awful.", "food"),
    ("The food was great but the service awful.", "service"),
    ("ok", "food"),
    ("Battery lasts two days; I would buy it again. " * 6, "battery"),
]


@pytest.fixture
def directory(tmp_path):
    return aspect_sentiment(tmp_path / "absa")


def test_probabilities_and_places_equal_plain_products(directory):
    with served(directory) as one:
        outputs = one.pool("token_classify", [PairInput(*pair) for pair in PAIRS], with_offsets=True)
        assert one.worker.pooling.labels == LABELS
        assert AspectSentiment(one.worker.pooling)
    for pair, output in zip(PAIRS, outputs, strict=True):
        wanted, places = aspect_probabilities(directory, *pair)
        rows = [row for row, place in enumerate(output.places) if place.text == 0]
        assert [(output.places[row].start, output.places[row].end) for row in rows] == places
        assert abs(output.values[rows] - wanted.numpy()).max() < 1e-5


def test_labels_of_another_model_and_a_missing_head_are_refused(directory):
    config = json.loads((directory / "config.json").read_text())
    swapped = config | {"id2label": config["id2label"] | {"1": "I-negative", "2": "B-negative"}}
    (directory / "config.json").write_text(json.dumps(swapped))
    with pytest.raises(EngineStartError, match="does not fit the labels"), served(directory):
        pass
    (directory / "config.json").write_text(json.dumps(config))
    weights = load_file(directory / "model.safetensors")
    save_file({name: one for name, one in weights.items() if name != "span.bias"}, directory / "model.safetensors")
    with pytest.raises(EngineStartError, match=r"span\.bias"), served(directory):
        pass


def test_parity_says_that_transformers_has_no_such_model(directory):
    with pytest.raises(UnsupportedModelError, match="AspectSentiment"):
        HuggingFaceReference(directory, read_pooling_model(directory))


def test_served_for_embedding_it_is_the_encoder_without_its_heads(directory):
    with served(directory, pooling__task="embed") as one:
        [output] = one.pool("embed", [TextInput("ok")])
        assert one.worker.pooling.width == 384
    assert output.values.shape == (384,)
