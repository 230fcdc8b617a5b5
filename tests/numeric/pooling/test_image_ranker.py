"""An image ranker with random weights against a padded, masked computation written down apart from it."""

import io
import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch.nn import functional
from transformers import AutoConfig, AutoModel, AutoTokenizer
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from chiasm.engines.pooling.ranker_loading import load_ranker
from chiasm.errors import ContextLengthError, EngineStartError, InvalidRequestError, UnsupportedModelError
from chiasm.pooling.model_files import is_pooling_directory, read_pooling_model
from chiasm.protocol.pooling.work import MediaPairInput, PairInput, TextInput
from tests.numeric.pooling.models import MARKER, build_image_ranker
from tests.numeric.pooling.pictures import picture, png
from tests.numeric.pooling.served import served

QUERY = "a red chair"
SIZES = [(40, 40), (90, 30), (31, 77), (64, 64)]
PICTURES = [png(*size, seed) for seed, size in enumerate(SIZES)]
ITEMS = [picture(data, size).item for data, size in zip(PICTURES, SIZES, strict=True)]
TEXTS = ["", "a chair", "", "something quite a bit longer about a chair"]
HEADS, EPS = 4, 1e-5


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return build_image_ranker(tmp_path_factory.mktemp("ranker") / "m")


@pytest.fixture(scope="module")
def one(directory):
    with served(directory) as worker:
        yield worker


class Reference:
    """transformers' text encoder and vision tower on a padded batch, and the adapter by its formulas, with masks."""

    def __init__(self, directory, text="bert", vision="clip_vision_model"):
        written = load_file(directory / "model.safetensors")
        read = __import__("json").loads((directory / "config.json").read_text())
        self.weights = written
        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        self.processor = CLIPImageProcessorPil.from_pretrained(directory)
        self.text = self._part(read["text_config"], "text_model.")
        self.vision = self._part(read["vision_config"], "vision_model.")
        self.num_layers = read["adapter_config"]["num_layers"]

    def _part(self, config, prefix):
        fields = dict(config)
        model = AutoModel.from_config(AutoConfig.for_model(fields.pop("model_type"), **fields)).eval()
        own = {name.removeprefix(prefix): one for name, one in self.weights.items() if name.startswith(prefix)}
        missing, unexpected = model.load_state_dict(own, strict=False)
        assert not unexpected
        assert all(name.startswith("pooler.") for name in missing)
        return model

    @torch.no_grad()
    def logits(self, pairs):
        """[pairs] of (query, text, bytes of a picture), in one batch that is padded well beyond its longest."""
        seconds = [MARKER + text for _, text, _ in pairs]
        encoded = self.tokenizer([query for query, _, _ in pairs], seconds, return_tensors="pt", padding=True)
        length = (96 - encoded["input_ids"].shape[1]) // 2
        encoded = {name: functional.pad(rows, (0, length)) for name, rows in encoded.items()}
        assert int((encoded["input_ids"] == self.tokenizer.convert_tokens_to_ids(MARKER)).sum()) == len(pairs)
        hidden = self.text(**encoded).last_hidden_state
        images = [Image.open(io.BytesIO(data)) for _, _, data in pairs]
        pixels = self.processor(images, return_tensors="pt")
        patches = self.vision(**pixels).last_hidden_state
        patches = self._linear("feature_projection.dense", self._norm("feature_projection.norm", patches))
        for number in range(self.num_layers):
            hidden = self._layer(f"adapter.layers.{number}", hidden, patches)
        mask = encoded["attention_mask"][..., None].float()
        pooled = (self._norm("adapter.norm", hidden) * mask).sum(1) / mask.sum(1)
        return self._linear("adapter.score", pooled)[:, 0].numpy()

    def _layer(self, name, hidden, patches):
        normed = self._norm(f"{name}.attention_norm", hidden)
        query, key, value = (
            self._linear(f"{name}.{part}", rows).unflatten(-1, (HEADS, -1))
            for part, rows in (("query", normed), ("key", patches), ("value", patches))
        )
        scores = torch.einsum("bthd,bphd->bhtp", query, key) / query.shape[-1] ** 0.5
        seen = torch.einsum("bhtp,bphd->bthd", scores.softmax(-1), value).flatten(2)
        hidden = hidden + self._linear(f"{name}.out", seen)
        wide = functional.gelu(self._linear(f"{name}.up", self._norm(f"{name}.mlp_norm", hidden)))
        return hidden + self._linear(f"{name}.down", wide)

    def _linear(self, name, rows):
        return functional.linear(rows, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def _norm(self, name, rows):
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return functional.layer_norm(rows, weight.shape, weight, bias, EPS)


def pairs_of(numbers):
    return [MediaPairInput(QUERY, ITEMS[number], TEXTS[number]) for number in numbers]


def scores(one, inputs, **params):
    return np.array([float(row[0]) for row in one.values("score", inputs, **params)])


def test_logits_are_those_of_the_padded_computation(one, directory):
    order = [3, 0, 1, 2]
    wanted = Reference(directory).logits([(QUERY, TEXTS[number], PICTURES[number]) for number in order])
    assert np.ptp(wanted) > 0.05, "pictures that come to the same would prove nothing"
    np.testing.assert_allclose(scores(one, pairs_of(order), activate=False), wanted, rtol=0, atol=1e-5)
    np.testing.assert_allclose(scores(one, pairs_of(order)), 1 / (1 + np.exp(-wanted)), rtol=0, atol=1e-5)


def test_a_candidate_comes_to_the_same_alone_and_in_any_company(one):
    """Rows are filled up to sizes that depend on the company: 8 or 32 tokens at a time."""
    together = scores(one, pairs_of([0, 1, 2, 3, 1, 0]), activate=False)
    alone = np.array([scores(one, pairs_of([number]), activate=False)[0] for number in range(4)])
    np.testing.assert_allclose(together, alone[[0, 1, 2, 3, 1, 0]], rtol=0, atol=1e-6)
    assert together[0] == together[5], "the same candidate twice is computed once"


@pytest.mark.parametrize("length", range(1, 40, 3))
def test_fillers_of_every_size_change_nothing(one, directory, length):
    text = "w" * length
    wanted = Reference(directory).logits([(QUERY, text, PICTURES[1])])
    found = scores(one, [MediaPairInput(QUERY, ITEMS[1], text)], activate=False)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


def test_the_text_depends_on_the_picture_and_the_picture_on_the_text(one):
    base = MediaPairInput(QUERY, ITEMS[0], "a")
    others = [MediaPairInput("a blue", ITEMS[0], "a"), MediaPairInput(QUERY, ITEMS[1], "a")]
    found = scores(one, [base, *others, MediaPairInput(QUERY, ITEMS[0], "b")], activate=False)
    assert len(set(found.tolist())) == 4


def test_a_callers_text_is_never_the_marker(one, directory):
    """What looks like the marker in a text is read letter by letter."""
    [plain] = one.pool("score", [MediaPairInput(QUERY, ITEMS[0], "")])
    [odd] = one.pool("score", [MediaPairInput(QUERY, ITEMS[0], MARKER)])
    assert odd.num_tokens == plain.num_tokens + len(MARKER)


def test_texts_that_are_too_long_are_cut_but_never_the_marker(one):
    long = MediaPairInput(QUERY, ITEMS[0], "word " * 40)
    with pytest.raises(ContextLengthError) as caught:
        one.pool("score", [MediaPairInput(QUERY, ITEMS[1]), long])
    assert caught.value.item == 1
    for way in ("end", "start"):
        [cut] = one.pool("score", [long], truncate=way)
        assert (cut.is_truncated, cut.num_tokens) == (True, 96 + 16)
    [short] = one.pool("score", [long], truncate="start", max_document_tokens=3)
    [same] = one.pool("score", [MediaPairInput(QUERY, ITEMS[0], "rd ")])
    assert float(short.values[0]) == pytest.approx(float(same.values[0]), abs=1e-6)


def test_other_parts_fit_together_too(tmp_path):
    directory = build_image_ranker(tmp_path / "m", "roberta", "siglip_vision_model")
    with served(directory) as other:
        found = scores(other, pairs_of([0, 1]), activate=False)
        alone = scores(other, pairs_of([1]), activate=False)
    assert np.isfinite(found).all()
    assert found[1] == pytest.approx(alone[0], abs=1e-6)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('"num_attention_heads": 4', '"num_attention_heads": 5', "over 5 heads"),
        ('"intermediate_size"', '"size"', "intermediate_size"),
    ],
)
def test_a_directory_whose_sizes_do_not_go_together_is_refused_at_the_start(
    directory, tmp_path, before, after, message
):
    config = json.loads((directory / "config.json").read_text())
    adapter = json.dumps(config["adapter_config"])
    assert before in adapter
    config["adapter_config"] = json.loads(adapter.replace(before, after))
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(directory / "model.safetensors")
    with pytest.raises(EngineStartError, match=message):
        load_ranker(tmp_path, torch.float32)


def test_what_is_refused(one, directory):
    assert is_pooling_directory(directory)
    assert one.worker.pooling.tasks == ("score",)
    with pytest.raises(UnsupportedModelError, match="image_ranker"):
        read_pooling_model(directory, "embedder")
    for wrong in (PairInput("a", "b"), MediaPairInput(ITEMS[0], "a"), TextInput("a")):
        with pytest.raises(InvalidRequestError) as caught:
            one.pool("score", [MediaPairInput(QUERY, ITEMS[0]), wrong])
        assert caught.value.item == 1


def test_bfloat16_is_near(one, directory):
    with served(directory, engine__dtype="bfloat16") as coarse:
        found = scores(coarse, pairs_of([0, 1, 2, 3]))
    np.testing.assert_allclose(found, scores(one, pairs_of([0, 1, 2, 3])), rtol=0, atol=0.05)
