"""Preparers give the arrays of the Hugging Face PIL processors, bit for bit, and know their counts beforehand."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers.models.llava_onevision.processing_llava_onevision import LlavaOnevisionProcessor

from tests.numeric.processors import CASES, LARGE

EXTREME_SIZES = [
    (1, 1),
    (1, 2),
    (2, 1),
    (1, 200),
    (200, 1),
    (3, 600),
    (28, 28),
    (32, 32),
    (64, 32),
    (336, 337),
    (400, 200),
]
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def picture(width, height, seed):
    """Noise over a gradient, so that every value and every rounding occurs."""
    rng = np.random.default_rng(seed)
    ramp = np.linspace(0, 255, width)[None, :, None] * np.ones((height, 1, 3))
    noisy = ramp + rng.normal(0, 60, (height, width, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def sizes_for(name):
    """The extreme sizes and random ones; few of them where the processor makes megapixels of anything."""
    if name == "idefics3_above_limit":
        return [(300, 30)]
    rng = random.Random(name)
    drawn = [(rng.randint(1, 700), rng.randint(1, 700)) for _ in range(24)]
    drawn = [size for size in drawn if max(size) <= 200 * min(size)]
    return [(3, 600), (640, 480), *drawn[:2]] if name in LARGE else [*EXTREME_SIZES, *drawn]


@pytest.fixture(params=CASES, ids=str)
def case(request, tmp_path):
    found = CASES[request.param]
    return SimpleNamespace(
        name=request.param, ours=found.preparer(tmp_path), theirs=found.processor_reference(), model=found.model
    )


def reference_arrays(case, image):
    """Their arrays for one picture without the batch dimension, which Qwen's do not have."""
    output = case.theirs(images=image, return_tensors="np")
    mask = output.get("pixel_attention_mask")
    assert mask is None or mask.all(), "we leave the mask out because it is always true"
    pixels = output["pixel_values"]
    return (pixels, output["image_grid_thw"][0]) if "image_grid_thw" in output else (pixels[0], None)


def test_arrays_are_those_of_the_reference(case):
    for seed, (width, height) in enumerate(sizes_for(case.name)):
        image = picture(width, height, seed)
        expected, grid = reference_arrays(case, image)
        prepared = case.ours.prepare(image)
        ours = prepared.pixel_values()
        assert ours.dtype == expected.dtype == np.float32
        assert np.array_equal(ours, expected), f"{width} x {height}"
        assert grid is None or prepared.plan.grid_thw == tuple(grid), f"{width} x {height}"
        assert prepared.plan == case.ours.plan(width, height)
        assert (prepared.plan.width, prepared.plan.height) == (width, height)


def test_counts_follow_from_the_size_alone(case):
    width, height = 150, 30
    plan = case.ours.plan(width, height)
    shape = case.ours.prepare(Image.new("RGB", (width, height))).pixel_values().shape
    tiles = plan.tiles[0] * plan.tiles[1]
    if plan.grid_thw is not None:
        assert shape[0] == np.prod(plan.grid_thw) == plan.num_embeddings * plan.merge_size**2
    elif case.name.startswith("llava_onevision"):
        assert shape[0] == tiles + 1
    elif len(shape) == 4:
        assert shape[0] == (tiles + 1 if tiles > 1 else 1)
    else:
        assert plan.resized == (shape[2], shape[1])


side = st.integers(1, 5000)
many = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@many
@given(side, side)
def test_qwen_patches_are_counted_as_by_the_reference(qwen, width, height):
    ours, theirs = qwen
    if max(width, height) > 200 * min(width, height):
        return
    plan = ours.plan(width, height)
    assert np.prod(plan.grid_thw) == theirs.get_number_of_image_patches(height, width)


@pytest.fixture
def qwen(tmp_path):
    found = CASES["qwen2_vl"]
    return found.preparer(tmp_path), found.processor_reference()


@many
@given(side, side)
def test_onevision_embeddings_are_counted_as_by_the_reference(onevision, width, height):
    ours, theirs = onevision
    if max(width, height) > 200 * min(width, height):
        return
    assert ours.plan(width, height).num_embeddings == theirs._get_number_of_features(height, width, 384, 384)


@pytest.fixture
def onevision(tmp_path):
    """Their processor class without the video processor, which would need torchvision."""
    found = CASES["llava_onevision"]
    theirs = LlavaOnevisionProcessor.__new__(LlavaOnevisionProcessor)
    theirs.image_processor = found.processor_reference()
    theirs.num_image_tokens = 27 * 27
    theirs.vision_aspect_ratio = "anyres_max_9"
    return found.preparer(tmp_path), theirs


@many
@given(side, side)
def test_idefics3_tiles_are_counted_as_by_the_reference(idefics3, width, height):
    ours, theirs = idefics3
    _, rows, columns = theirs.get_number_of_image_patches(height, width)
    plan = ours.plan(width, height)
    assert plan.tiles == ((rows, columns) if rows else (1, 1))


@pytest.fixture
def idefics3(tmp_path):
    found = CASES["idefics3"]
    return found.preparer(tmp_path), found.processor_reference()
