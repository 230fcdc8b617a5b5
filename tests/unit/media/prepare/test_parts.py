"""Preparers that see only the middle of a picture: no more than that is resized, and it has the bits of the whole."""

import numpy as np
import pytest
from PIL import Image

from chiasm.media.kernels.registry import kernels
from chiasm.media.prepare.clip import ClipPreparer
from tests.unit.media.pictures import noise

MODEL = {"vision_config": {"model_type": "clip_vision_model", "image_size": 224, "patch_size": 32}}
CROPS = [{}, {"size": {"shortest_edge": 256}}, {"size": {"shortest_edge": 300}, "resample": 2}]


@pytest.mark.parametrize("processor", CROPS, ids=str)
@pytest.mark.parametrize("size", [(640, 400), (333, 901), (500, 500), (230, 1200), (150, 100), (224, 300)])
def test_the_middle_has_the_bits_of_pillows_resize(tmp_path, processor, size):
    edge = processor.get("size", {}).get("shortest_edge", 224)
    short, long = min(size), max(size)
    scaled = tuple(edge if side == short else int(edge * long / short) for side in size)
    left, top = ((side - 224) // 2 for side in scaled)
    picture = noise(*size)
    resized = picture.resize(scaled, Image.Resampling(processor.get("resample", 3)))
    expected = np.asarray(resized.crop((left, top, left + 224, top + 224)))
    found = ClipPreparer(tmp_path, processor, MODEL).prepare(picture)
    assert np.array_equal(found.arrays["pixel_values"], expected.transpose(2, 0, 1))


def test_no_more_is_resized(tmp_path, monkeypatch):
    shapes, resize_part = [], kernels().resize_part

    def watched(*arguments):
        shapes.append((found := resize_part(*arguments)).shape)
        return found

    monkeypatch.setattr(type(kernels()), "resize_part", lambda _, *arguments: watched(*arguments))
    ClipPreparer(tmp_path, {}, MODEL).prepare(noise(1000, 400))
    assert shapes == [(224, 224, 3)]
