"""The fast preparation is near the exact one where it applies, equal elsewhere, and never passes for it."""

import numpy as np
import pytest
from PIL import Image, ImageFilter

from chiasm.errors import MediaDecodeError
from chiasm.media.parity import preparation_parity
from chiasm.media.picture.decode import decode_announced, decode_pixels
from chiasm.media.prepare.qwen2_vl import Qwen2VLPreparer
from chiasm.media.prepare.reduced import ReducedPreparer
from chiasm.settings import MediaSettings
from tests.unit.media.pictures import encode

SETTINGS = MediaSettings()


@pytest.fixture
def exact(tmp_path):
    return Qwen2VLPreparer(tmp_path, {"max_pixels": 56 * 84, "min_pixels": 28 * 28}, {})


def photo(width=900, height=600):
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(6))


def test_a_large_jpeg_is_decoded_smaller_and_comes_near(exact):
    data = encode(photo(), "jpeg", quality=90)
    least = ReducedPreparer(exact).least_size(900, 600)
    assert least == (112, 56)
    assert decode_pixels(data, SETTINGS, least).shape == (75, 113, 3)
    found = preparation_parity("a", data, exact, SETTINGS)
    assert found.psnr_db is not None
    assert found.psnr_db > 40
    assert 0 < found.mean_error <= found.max_error < 20
    assert found.resized == (56, 28)


def test_a_turned_jpeg_comes_out_upright(exact):
    image = photo()
    exif = Image.Exif()
    exif[274] = 6
    data = encode(image, "jpeg", quality=90, exif=exif)
    found = preparation_parity("a", data, exact, SETTINGS)
    assert (found.width, found.height) == (600, 900)
    assert found.psnr_db is not None
    assert found.psnr_db > 40


@pytest.mark.parametrize("kind", ["png", "webp", "small jpeg", "cmyk jpeg"])
def test_everything_else_is_exact(exact, kind):
    image = photo(100, 60) if kind == "small jpeg" else photo()
    if kind == "cmyk jpeg":
        image = image.convert("CMYK")
    found = preparation_parity("a", encode(image, kind.split()[-1]), exact, SETTINGS)
    assert (found.psnr_db, found.max_error) == (None, 0)


def test_the_revision_tells_them_apart(exact):
    fast = ReducedPreparer(exact)
    assert fast.revision != exact.revision
    assert fast.plan(900, 600) == exact.plan(900, 600)


def test_the_announced_size_counts_whatever_was_decoded(exact):
    data = encode(photo(), "jpeg")
    with pytest.raises(MediaDecodeError, match=r"\(900, 600\), but was announced as \(450, 300\)"):
        decode_announced(data, (450, 300), ReducedPreparer(exact).least_size(450, 300), SETTINGS)
