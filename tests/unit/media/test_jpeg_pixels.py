"""Our way through everyday JPEG gives libjpeg-turbo's bits, of all pixels or a part, or leaves the picture to it."""

import random
from io import BytesIO

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from chiasm.errors import MediaDecodeError
from chiasm.media.kernels.base import Part
from chiasm.media.picture.decode import decode_pixels
from chiasm.media.picture.jpeg_pixels import decode_jpeg_part
from chiasm.settings import MediaSettings
from tests.unit.media.pictures import exif_block

pytest.importorskip("chiasm.media.picture._jpeg", reason="built without a C compiler")
SETTINGS = MediaSettings()
SUBSAMPLINGS = {0: "4:4:4", 1: "4:2:2", 2: "4:2:0"}


def drawn(width, height, seed, mode="RGB"):
    """Soft colours, noise of different strength, and hard edges."""
    rng = np.random.default_rng(seed)
    soft = Image.fromarray(rng.integers(0, 256, (3, 4, 3), np.uint8)).resize((width, height), Image.Resampling.BICUBIC)
    noise = rng.normal(0, rng.choice([0, 3, 30, 150]), (height, width, 3))
    pixels = np.clip(np.asarray(soft, np.float32) + noise, 0, 255).astype(np.uint8)
    if seed % 3 == 0:
        pixels[:, width // 2 :] = 255 * (seed % 2)
    return Image.fromarray(pixels).convert(mode)


def encoded(image, **options):
    file = BytesIO()
    image.save(file, "JPEG", **options)
    return file.getvalue()


def ours(data, part=None):
    """The part, None where it is left to others."""
    height, width = simplejpeg.decode_jpeg_header(data, strict=False)[:2]
    part = part or Part(0, 0, width, height)
    out = np.full((part.height, part.width, 3), 77, np.uint8)
    return out if decode_jpeg_part(data, (width, height), part, out) else None


def theirs(data):
    return simplejpeg.decode_jpeg(data, "RGB")


def options(rng):
    found = {"quality": rng.choice([5, 40, 75, 90, 98, 100]), "subsampling": rng.choice([0, 1, 2])}
    if rng.random() < 0.3:
        found["optimize"] = True
    if rng.random() < 0.4:
        found["restart_marker_blocks"] = rng.randint(1, 9)
    return found


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_all_pixels_have_libjpegs_bits(mode):
    rng = random.Random(3)
    for seed in range(150):
        width, height, chosen = rng.randint(8, 150), rng.randint(1, 150), options(rng)
        data = encoded(drawn(width, height, seed, mode), **chosen)
        found = ours(data)
        assert found is not None, f"{width} x {height}, {chosen}"
        assert np.array_equal(found, theirs(data)), f"{width} x {height}, {chosen}"


@pytest.mark.parametrize("subsampling", SUBSAMPLINGS, ids=SUBSAMPLINGS.get)
def test_a_part_is_that_of_the_whole(subsampling):
    rng = random.Random(4)
    for seed in range(12):
        width, height = rng.randint(8, 200), rng.randint(1, 200)
        data = encoded(drawn(width, height, seed), quality=85, subsampling=subsampling)
        whole = theirs(data)
        for _ in range(25):
            left, top = rng.randrange(width), rng.randrange(height)
            part = Part(left, top, rng.randint(1, width - left), rng.randint(1, height - top))
            found = ours(data, part)
            assert found is not None, part
            assert np.array_equal(found, whole[top : top + part.height, left : left + part.width]), part


def test_a_large_picture_of_many_buffers():
    data = encoded(drawn(1500, 1100, 1), quality=97)
    assert len(data) > 500_000
    assert np.array_equal(ours(data), theirs(data))


@pytest.mark.parametrize("change", [{"progressive": True}, {"mode": "CMYK"}, {"keep_rgb": True}])
def test_other_kinds_are_left_to_others(change):
    saving = {key: value for key, value in change.items() if key != "mode"}
    assert ours(encoded(drawn(64, 48, 5, change.get("mode", "RGB")), **saving)) is None


def test_a_picture_of_another_size_is_left_to_others():
    data = encoded(drawn(64, 48, 5))
    out = np.empty((64, 48, 3), np.uint8)
    assert not decode_jpeg_part(data, (48, 64), Part(0, 0, 48, 64), out)


def test_parts_outside_of_the_picture_are_no_parts():
    data, out = encoded(drawn(64, 48, 5)), np.empty((48, 64, 3), np.uint8)
    for part in (Part(-1, 0, 64, 48), Part(0, 1, 64, 48), Part(0, 0, 0, 48), Part(0, 0, 63, 48)):
        with pytest.raises(ValueError, match="do not fit"):
            decode_jpeg_part(data, (64, 48), part, out)


@pytest.mark.parametrize("restarts", [0, 2])
def test_data_that_is_cut_off_is_left_to_others(restarts):
    data = encoded(drawn(40, 33, 8), quality=80, restart_marker_blocks=restarts)
    for length in range(data.index(b"\xff\xda"), len(data)):
        assert not decode_jpeg_part(data[:length], (40, 33), Part(0, 0, 8, 8), np.empty((8, 8, 3), np.uint8))
    with pytest.raises(MediaDecodeError):
        decode_pixels(data[:-40], SETTINGS)


def test_of_broken_data_nothing_is_taken_that_libjpeg_refuses():
    rng, num_taken = random.Random(9), 0
    for seed in range(40):
        whole = encoded(drawn(48, 40, seed), **options(rng))
        for _ in range(60):
            data = bytearray(whole)
            for _ in range(rng.randint(1, 3)):
                data[rng.randrange(2, len(data))] = rng.choice([0, 255, 0xD0, 0xD9, rng.randrange(256)])
            out = np.empty((40, 48, 3), np.uint8)
            if decode_jpeg_part(bytes(data), (48, 40), Part(0, 0, 48, 40), out):
                num_taken += 1
                assert np.array_equal(out, theirs(bytes(data)))
    assert num_taken > 100, "nothing was tried"


def test_coefficients_beyond_all_pictures():
    """Steps of quantisation that no encoder would write make sums overflow, in both decoders alike."""
    rng, num_taken = random.Random(11), 0
    for seed in range(80):
        data = bytearray(encoded(drawn(64, 48, seed), quality=rng.choice([60, 95, 100]), subsampling=seed % 3))
        tables = data.index(b"\xff\xdb")
        for place in range(64):
            if rng.random() < 0.3:
                data[tables + 5 + place] = rng.randint(1, 255)
        found = ours(bytes(data))
        if found is not None:
            num_taken += 1
            assert np.array_equal(found, theirs(bytes(data)))
    assert num_taken > 20, "nothing was tried"


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_part_of_a_picture_that_is_stored_turned(orientation):
    data = encoded(drawn(90, 70, 2), exif=exif_block(orientation))
    whole = decode_pixels(data, SETTINGS)
    part = Part(11, 5, 40, 31)
    found = decode_pixels(data, SETTINGS, part=part)
    assert np.array_equal(found, whole[5:36, 11:51])


def test_other_formats_come_whole():
    file = BytesIO()
    drawn(90, 70, 2).save(file, "PNG")
    assert decode_pixels(file.getvalue(), SETTINGS, part=Part(11, 5, 40, 31)).shape == (70, 90, 3)
