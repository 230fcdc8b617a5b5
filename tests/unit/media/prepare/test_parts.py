"""Preparers that see only the middle of a picture: decoding that much gives the same bits as decoding all of it."""

import numpy as np
import pytest

from chiasm.media.picture import jpeg_pixels
from chiasm.media.picture.decode import decode_pixels
from chiasm.media.prepare.clip import ClipPreparer, LlavaPreparer, SiglipPreparer
from chiasm.media.prepare.medium import Announced, prepare_medium
from chiasm.media.prepare.reduced import ReducedPreparer
from chiasm.settings import MediaSettings
from tests.unit.media.pictures import encode, exif_block, noise

SETTINGS = MediaSettings()
MODEL = {"vision_config": {"model_type": "clip_vision_model", "image_size": 224, "patch_size": 32}}
CROPS = [{}, {"size": {"shortest_edge": 256}}, {"size": {"shortest_edge": 300}, "resample": 2}]


def made(cls, tmp_path, **processor):
    return cls(tmp_path, processor, MODEL)


def prepared(data, preparer, width, height):
    return prepare_medium(data, Announced(width, height), preparer, SETTINGS).prepared


@pytest.mark.parametrize("processor", CROPS, ids=str)
@pytest.mark.parametrize("size", [(640, 400), (333, 901), (500, 500), (230, 1200), (150, 100)])
@pytest.mark.parametrize("orientation", [1, 6])
def test_the_part_gives_the_bits_of_the_whole(tmp_path, processor, size, orientation):
    preparer = made(ClipPreparer, tmp_path, **processor)
    stored = size if orientation == 1 else size[::-1]
    data = encode(noise(*stored), "jpeg", exif=exif_block(orientation))
    whole = preparer.prepare(decode_pixels(data, SETTINGS))
    found = prepared(data, preparer, *size)
    assert found.plan == whole.plan
    assert np.array_equal(found.arrays["pixel_values"], whole.arrays["pixel_values"])


@pytest.mark.parametrize("kind", ["png", "webp"])
def test_other_formats_are_prepared_whole(tmp_path, kind):
    preparer = made(ClipPreparer, tmp_path)
    data = encode(noise(640, 400), kind)
    whole = preparer.prepare(decode_pixels(data, SETTINGS))
    assert np.array_equal(prepared(data, preparer, 640, 400).pixel_values(), whole.pixel_values())


def test_less_of_a_long_picture_is_decoded(tmp_path, monkeypatch):
    parts, decode = [], jpeg_pixels.decode_jpeg_part

    def watched(data, size, part, out):
        parts.append(part)
        return decode(data, size, part, out)

    monkeypatch.setattr("chiasm.media.picture.decode.decode_jpeg_part", watched)
    prepared(encode(noise(1000, 400), "jpeg"), made(ClipPreparer, tmp_path), 1000, 400)
    [part] = parts
    assert 400 <= part.width < 430
    assert part.height == 400


def test_where_all_is_seen_there_is_no_part(tmp_path):
    padding = made(LlavaPreparer, tmp_path, do_pad=True)
    for preparer in (made(SiglipPreparer, tmp_path), padding):
        assert preparer.part(640, 400) is None
    assert made(ClipPreparer, tmp_path).part(500, 500) is None
    assert ReducedPreparer(padding).part(640, 400) is None


def test_the_fast_way_takes_the_part_where_it_can_be_had(tmp_path, monkeypatch):
    exact = made(ClipPreparer, tmp_path)
    data = encode(noise(2400, 1600).resize((1200, 800)), "jpeg")
    whole = exact.prepare(decode_pixels(data, SETTINGS)).pixel_values()
    assert np.array_equal(prepared(data, ReducedPreparer(exact), 1200, 800).pixel_values(), whole)
    monkeypatch.setattr("chiasm.media.picture.decode.decode_jpeg_part", lambda *_: False)
    reduced = prepared(data, ReducedPreparer(exact), 1200, 800).pixel_values()
    assert not np.array_equal(reduced, whole)
    assert np.abs(reduced - whole).mean() < 0.1
