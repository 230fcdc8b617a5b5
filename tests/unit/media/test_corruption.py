"""Hostile data ends in a picture of the stated size or in a `MediaError`; nothing else, and nothing runs away."""

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from chiasm.errors import MediaError
from chiasm.media.picture.decode import decode_picture
from chiasm.media.picture.header import read_header
from chiasm.settings import MediaSettings
from tests.unit.media.pictures import FORMATS, animation, encode, exif_block, gradient, noise

# Small limits: a corrupted size field must be refused, not allocated.
LIMITS = MediaSettings(max_item_pixels=100_000)


def originals(kind):
    exif = {"exif": exif_block(6)[6:]} if kind in ("jpeg", "png", "webp", "avif") else {}
    yield encode(noise(40, 30), kind, **exif)
    if kind == "jpeg":
        yield encode(gradient(40, 30), kind, progressive=True, **exif)
        yield encode(gradient(40, 30).convert("CMYK"), kind)
        yield encode(gradient(40, 30).convert("L"), kind)
    if kind == "png":
        yield encode(gradient(40, 30).convert("RGBA"), kind)
        yield encode(gradient(40, 30).convert("P"), kind, transparency=bytes(range(256)))
        yield encode(Image.fromarray(np.arange(1200, dtype=np.uint16).reshape(30, 40)), kind)
        yield animation("apng")
    if kind == "tiff":
        yield encode(gradient(40, 30), kind, compression="tiff_lzw")
        yield encode(gradient(40, 30), kind, compression="jpeg")
    if kind in ("gif", "webp"):
        yield animation(kind)


def decode_or_refuse(data):
    try:
        image = decode_picture(data, LIMITS)
    except MediaError:
        return
    header = read_header(data)
    assert image.mode == "RGB"
    assert image.size == (header.width, header.height)
    assert len(image.tobytes()) == 3 * header.width * header.height


@pytest.mark.parametrize("kind", FORMATS)
def test_random_corruption(kind):
    dice = random.Random(kind)
    for original in originals(kind):
        for _ in range(60):
            data = bytearray(original)
            for _ in range(dice.choice((1, 3, 10))):
                # Half of all damage goes where the structure is.
                data[dice.randrange(min(len(data), 200 if dice.random() < 0.5 else len(data)))] = dice.randrange(256)
            decode_or_refuse(bytes(data))


@pytest.mark.parametrize("kind", FORMATS)
def test_cut_anywhere(kind):
    for original in originals(kind):
        for end in range(0, len(original), max(1, len(original) // 40)):
            decode_or_refuse(original[:end])


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.data_too_large])
@given(st.data())
def test_pieces_repeated_removed_or_moved(data):
    kind = data.draw(st.sampled_from(FORMATS))
    original = encode(gradient(20, 14), kind)
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(original))] * 2)))
    at = data.draw(st.integers(0, len(original)))
    piece = original[start:end]
    without = original[:start] + original[end:]
    decode_or_refuse(data.draw(st.sampled_from([without, original[:at] + piece + original[at:], without + piece])))
