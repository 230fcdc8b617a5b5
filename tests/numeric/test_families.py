"""Families against transformers: vision features, positions, picture tokens, loading."""

import json
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

from chiasm.engines.embedded.families.base import PlacedImage
from chiasm.engines.embedded.families.registry import family_for, known_model_types
from chiasm.errors import EngineStartError
from chiasm.media.prepare.registry import preparer_for
from tests.numeric.random_models import (
    PICTURE_FAMILIES,
    RECIPES,
    TEXT_FAMILIES,
    build,
    reference_inputs,
    reference_model,
)

SIZES = [(90, 150), (64, 64), (33, 20), (200, 61)]


def pictures(sizes=SIZES, seed=0):
    rng = np.random.default_rng(seed)
    return [Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)) for width, height in sizes]


def opened(name, directory):
    """A family, its loaded model and the transformers model of one random model."""
    build(name, directory)
    family = family_for(directory)
    return SimpleNamespace(
        name=name,
        directory=directory,
        family=family,
        model=family.load(torch.float32),
        reference=reference_model(name, directory),
    )


@pytest.fixture(scope="module", params=PICTURE_FAMILIES)
def vlm(request, tmp_path_factory):
    return opened(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module", params=TEXT_FAMILIES)
def text_model(request, tmp_path_factory):
    return opened(request.param, tmp_path_factory.mktemp(request.param))


def reference_features(vlm, prepared):
    """Rows [all embeddings, width] as the transformers model gives them, deepstack levels side by side."""
    inputs = reference_inputs(vlm.name, [1], prepared)
    arguments = ("pixel_values", "image_grid_thw", "image_sizes")
    with torch.inference_mode():
        output = vlm.reference.model.get_image_features(
            **{name: inputs[name] for name in arguments if name in inputs}, return_dict=True
        )
    levels = [output.pooler_output, *(getattr(output, "deepstack_features", None) or [])]
    flat = [torch.cat([rows.reshape(-1, rows.shape[-1]) for rows in level]) for level in levels]
    return torch.cat(flat, -1)


def test_encode_gives_the_features_of_the_reference(vlm):
    prepared = [vlm.family.preparer.prepare(image) for image in pictures()]
    ours = vlm.family.encode(vlm.model, prepared)
    theirs = reference_features(vlm, prepared)
    width = vlm.model.text.config.hidden_size * (1 + vlm.family.num_deepstack_levels)
    assert [tuple(rows.shape) for rows in ours] == [(image.plan.num_embeddings, width) for image in prepared]
    scale = theirs.abs().max().item()
    torch.testing.assert_close(torch.cat(ours), theirs, rtol=1e-4, atol=1e-5 * scale)


def test_a_picture_is_encoded_alike_alone_and_in_a_batch(vlm):
    prepared = [vlm.family.preparer.prepare(image) for image in pictures()]
    together = vlm.family.encode(vlm.model, prepared)
    for image, rows in zip(prepared, together, strict=True):
        (alone,) = vlm.family.encode(vlm.model, [image])
        torch.testing.assert_close(alone, rows, rtol=1e-4, atol=1e-5 * rows.abs().max().item())


def test_pictures_of_black_keep_their_tiles(vlm):
    """Prepared zeros are a picture, not padding."""
    prepared = vlm.family.preparer.prepare(Image.new("RGB", (90, 150)))
    prepared.arrays["pixel_values"][...] = 0
    (rows,) = vlm.family.encode(vlm.model, [prepared])
    assert len(rows) == prepared.plan.num_embeddings
    assert torch.isfinite(rows).all()


def test_bfloat16_is_close_to_float32(vlm):
    prepared = [vlm.family.preparer.prepare(image) for image in pictures()[:2]]
    narrow = vlm.family.load(torch.bfloat16)
    rows = torch.cat(vlm.family.encode(narrow, prepared))
    assert rows.dtype == narrow.lm_head.dtype == torch.bfloat16
    full = torch.cat(vlm.family.encode(vlm.model, prepared))
    similarity = torch.nn.functional.cosine_similarity(rows.float(), full, dim=-1)
    assert similarity.mean() > 0.98


def prompt_with(vlm, prepared):
    """Token ids of a text with all pictures, and where they lie."""
    ids, placed = [5, 6, 7], []
    for image in prepared:
        expanded = vlm.family.expand(image.plan)
        placed.append(PlacedImage(image.plan, len(ids), len(expanded)))
        ids += [*expanded, 8, 9]
    return ids, placed


def test_expansion_has_a_placeholder_for_every_embedding(vlm):
    for width, height in [*SIZES, (1, 1), (1, 150), (500, 400)]:
        plan = vlm.family.preparer.plan(width, height)
        ids = vlm.family.expand(plan)
        assert len(ids) == plan.num_prompt_tokens
        assert ids.count(vlm.family.image_token_id) == plan.num_embeddings


def test_positions_are_those_of_the_reference(vlm):
    prepared = [vlm.family.preparer.prepare(image) for image in pictures()]
    ids, placed = prompt_with(vlm, prepared)
    positions, next_position = vlm.family.positions(len(ids), placed)
    if vlm.family.frequency_axes is None:
        assert np.array_equal(positions, np.arange(len(ids))[None])
        assert next_position == len(ids)
        return
    inputs = reference_inputs(vlm.name, ids, prepared)
    theirs, delta = vlm.reference.model.get_rope_index(
        inputs["input_ids"], inputs["mm_token_type_ids"], inputs["image_grid_thw"]
    )
    assert np.array_equal(positions, theirs[:, 0].numpy())
    assert next_position == len(ids) + delta.item()


def test_frequency_axes_rotate_as_the_reference(vlm):
    """The reference's tables equal plain ones whose every frequency takes the position of its axis."""
    axes = vlm.family.frequency_axes
    if axes is None:
        assert vlm.family.positions(3, [])[0].shape == (1, 3)
        return
    rotary = vlm.model.text.rotary_emb
    positions = torch.randint(0, 500, (3, 1, 40), generator=torch.Generator().manual_seed(0))
    theirs, _ = rotary(torch.zeros(1, dtype=torch.float32), positions)
    if theirs.ndim == 4:  # chunked models mix the three tables inside attention
        section = vlm.model.text.config.rope_parameters["mrope_section"] * 2
        theirs = torch.cat([part[number % 3] for number, part in enumerate(theirs.split(section, -1))], -1)
    angles = positions[axes, 0].T * rotary.inv_freq
    torch.testing.assert_close(theirs[0], torch.cat([angles, angles], -1).cos())


def test_the_reference_accepts_our_prompt_and_answers_by_the_picture(vlm):
    """Guards the other suites: its answers must differ, or equal answers would prove nothing."""
    answers = set()
    for seed in range(3):
        prepared = [vlm.family.preparer.prepare(image) for image in pictures([(90, 150)], seed)]
        inputs = reference_inputs(vlm.name, prompt_with(vlm, prepared)[0], prepared)
        with torch.inference_mode():
            output = vlm.reference.generate(**inputs, max_new_tokens=12, do_sample=False)
        answers.add(tuple(output[0, inputs["input_ids"].shape[1] :].tolist()))
    assert len(answers) == 3
    assert all(len(set(answer)) > 2 for answer in answers)


@pytest.mark.parametrize("name", ["idefics3", "smolvlm"])
@pytest.mark.parametrize("size", [(20, 20), (128, 50), (50, 128), (100, 100)])
def test_tile_tokens_are_those_of_the_reference(tmp_path, name, size):
    family = family_for(build(name, tmp_path))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    plan = family.preparer.plan(*size)
    rows, columns = plan.tiles if plan.tiles != (1, 1) else (0, 0)
    per_tile = plan.num_embeddings // (rows * columns + 1)
    settings = {key: value for key, value in RECIPES[name].processor.items() if key != "image_processor_type"}
    processor = Idefics3Processor(Idefics3ImageProcessorPil(**settings), tokenizer, image_seq_len=per_tile)
    if name == "smolvlm":
        counted = processor._get_num_multimodal_tokens([(size[1], size[0])])["num_image_tokens"]
        assert counted == [plan.num_prompt_tokens]  # their count takes names for single tokens, as SmolVLM's are
        text = get_image_prompt_string(rows, columns, per_tile, "<fake_token_around_image>", "<image>", "<global-img>")
    else:
        text = processor.replace_image_token({"rows": [[rows]], "cols": [[columns]]}, 0)
    assert family.expand(plan) == tokenizer(text, add_special_tokens=False)["input_ids"]


def test_a_preparer_is_the_same_with_and_without_the_tokenizer(tmp_path):
    """Gateway and worker must agree on the revision where both can count."""
    directory = build("smolvlm", tmp_path)
    alone, counting = preparer_for(directory), family_for(directory).preparer
    assert alone is not None
    assert alone.revision == counting.revision
    assert alone.plan(150, 90) == counting.plan(150, 90)


def test_text_models_load_as_the_reference(text_model):
    ours, theirs = text_model.model, text_model.reference
    assert torch.equal(ours.lm_head, theirs.lm_head.weight)
    ids = torch.tensor([[5, 6, 7, 300, 8]])
    with torch.inference_mode():
        assert torch.equal(ours.text(ids).last_hidden_state, theirs.model(ids).last_hidden_state)
    assert text_model.family.preparer is None
    assert ours.vision is None


def test_text_models_answer_by_the_prompt(text_model):
    answers = set()
    for first in range(3):
        inputs = reference_inputs(text_model.name, [first, 50, 60, 70], [])
        with torch.inference_mode():
            answers.add(
                tuple(text_model.reference.generate(**inputs, max_new_tokens=12, do_sample=False)[0, 4:].tolist())
            )
    assert len(answers) == 3


def test_every_known_model_type_has_a_random_model():
    assert {recipe.config["model_type"] for recipe in RECIPES.values()} == set(known_model_types())


class TestLoading:
    @pytest.fixture
    def directory(self, tmp_path):
        return build("llama", tmp_path)

    def refused(self, directory):
        with pytest.raises(EngineStartError) as caught:
            family_for(directory).load(torch.float32)
        return caught.value

    def test_no_weights(self, directory):
        (directory / "model.safetensors").unlink()
        error = self.refused(directory)
        assert directory.name in error.message
        assert "safetensors" in error.hint

    def test_truncated_weights(self, directory):
        path = directory / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-1000])
        assert "cannot load the weights" in self.refused(directory).message

    def test_a_missing_tensor_is_named(self, directory):
        path = directory / "model.safetensors"
        weights = load_file(path)
        del weights["model.layers.1.mlp.up_proj.weight"]
        save_file(weights, path, metadata={"format": "pt"})
        assert "1 tensors are missing" in (message := self.refused(directory).message)
        assert "model.layers.1.mlp.up_proj.weight" in message

    def test_weights_of_another_size(self, directory):
        config = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps(config | {"intermediate_size": 96}))
        assert "cannot load the weights" in self.refused(directory).message

    def test_a_tile_model_without_its_tokenizer(self, tmp_path):
        directory = build("idefics3", tmp_path)
        (directory / "tokenizer.json").write_text("{")
        with pytest.raises(EngineStartError, match=r"tokenizer\.json"):
            family_for(directory)

    def test_tile_tokens_that_do_not_match_the_plan(self, tmp_path, monkeypatch):
        directory = build("idefics3", tmp_path)
        plan = family_for(directory).preparer.plan(1000, 1000)
        preparer = type(family_for(directory).preparer)
        wrong = msgspec.structs.replace(plan, num_prompt_tokens=plan.num_prompt_tokens + 1)
        monkeypatch.setattr(preparer, "plan", lambda self, width, height: wrong)
        with pytest.raises(EngineStartError, match=f"{plan.num_prompt_tokens} tokens"):
            family_for(directory)
