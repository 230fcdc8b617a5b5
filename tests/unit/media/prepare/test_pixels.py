"""The table that replaces per-pixel arithmetic, and the hash of everything that changes the output."""

import numpy as np
import PIL
import pytest
from PIL import Image

from chiasm.media.prepare.pixels import (
    COMMON_DEFAULTS,
    normalization_table,
    pixels_of,
    revision_of,
)
from chiasm.media.prepare.qwen2_vl import Qwen2VLPreparer

SETTINGS = COMMON_DEFAULTS | {"image_mean": [0.5, 0.25, 0.0], "image_std": [0.5, 1.0, 2.0]}


def test_the_table_maps_black_and_white():
    table = normalization_table(SETTINGS)
    assert table.dtype == np.float32
    assert table[:, 0].tolist() == [-1.0, -0.25, 0.0]
    assert table[:, 255].tolist() == [1.0, 0.75, 0.5]


@pytest.mark.parametrize(
    ("changes", "white"),
    [
        ({"do_normalize": False}, 1.0),
        ({"do_rescale": False, "do_normalize": False}, 255.0),
        ({"image_mean": 0.0, "image_std": 0.5}, 2.0),
    ],
)
def test_the_table_leaves_out_what_is_turned_off(changes, white):
    assert normalization_table(SETTINGS | changes)[:, 255].tolist() == [white] * 3


def test_only_rgb_is_taken():
    with pytest.raises(AssertionError, match="RGBA"):
        pixels_of(Image.new("RGBA", (1, 1)))


def test_the_revision_hashes_kind_settings_and_pillow(monkeypatch):
    revisions = {revision_of("a", {"x": 1}), revision_of("b", {"x": 1}), revision_of("a", {"x": 2})}
    monkeypatch.setattr(PIL, "__version__", "99.1.0")
    revisions.add(revision_of("a", {"x": 1}))
    assert len(revisions) == 4
    monkeypatch.setattr(PIL, "__version__", "99.2.0")
    assert revision_of("a", {"x": 1}) in revisions


def test_the_revision_of_a_preparer_follows_its_settings(tmp_path):
    silent = Qwen2VLPreparer(tmp_path, {}, {})
    same = Qwen2VLPreparer(tmp_path, {"patch_size": 14, "processor_class": "Qwen2VLProcessor"}, {})
    other = Qwen2VLPreparer(tmp_path, {"max_pixels": 10_000}, {})
    assert silent.revision == same.revision != other.revision


def test_preparing_leaves_the_picture_alone(tmp_path):
    image = Image.new("RGB", (64, 64), (1, 2, 3))
    before = image.tobytes()
    prepared = Qwen2VLPreparer(tmp_path, {}, {}).prepare(image)
    prepared.arrays["pixel_values"][...] = 0
    assert image.tobytes() == before
