"""JPEG decoded and resized in one go: the bits of one after the other, or nothing at all."""

import random

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from chiasm.errors import MediaError
from chiasm.media.kernels.base import Part, Resizing
from chiasm.media.kernels.plain import PlainKernels
from chiasm.media.picture.decode import decode_pixels
from chiasm.media.prepare.clip import ClipPreparer
from chiasm.media.prepare.medium import Announced, prepare_medium
from chiasm.settings import MediaSettings
from tests.unit.media.pictures import encode, gradient, noise, with_frame_size

native = pytest.importorskip("chiasm.media.kernels.native", reason="built without a C compiler")
pytestmark = pytest.mark.skipif(not native.STREAMS_JPEG, reason="built without the header of libjpeg-turbo")
PLAIN, BICUBIC = PlainKernels(), 3
SAMPLINGS = ("444", "422", "420", "440", "411")


@pytest.fixture(params=native._native.names())
def compiled(request):
    return native.NativeKernels(request.param)


def soft(width, height, seed):
    """Shapes with noise on them: neighbours matter to the colours, and codes are of all lengths."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (5, 6, 3), np.uint8)).resize((width, height), Image.Resampling.BICUBIC)
    noisy = np.asarray(small, np.int16) + rng.normal(0, 20, (height, width, 3)).astype(np.int16)
    return np.clip(noisy, 0, 255).astype(np.uint8)


def a_resizing(rng, width, height):
    """Smaller than the picture, and of that any part."""
    size = rng.randint(1, max(1, width - 1)), rng.randint(max(1, height // 3), max(1, height - 1))
    left, top = rng.randrange(size[0]), rng.randrange(size[1])
    wanted = Part(left, top, rng.randint(1, size[0] - left), rng.randint(1, size[1] - top))
    return Resizing(size, wanted, rng.choice([1, 2, 3]))


def expected(data, resizing):
    return PLAIN.resize_part(simplejpeg.decode_jpeg(data, "RGB"), *resizing)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_what_comes_has_the_bits_of_decoding_and_then_resizing(compiled, sampling):
    rng, num_streamed = random.Random(sampling), 0
    for seed in range(120):
        width, height = rng.randint(2, 400), rng.randint(2, 150)
        data = simplejpeg.encode_jpeg(soft(width, height, seed), rng.randint(5, 100), "RGB", sampling)
        resizing = a_resizing(rng, width, height)
        found = compiled.resize_jpeg(data, (width, height), resizing)
        if found is not None:
            num_streamed += 1
            assert np.array_equal(found.pixels, expected(data, resizing)), f"{width} x {height}, {resizing}"
    assert num_streamed > 40


def test_every_narrow_part_has_the_bits_of_the_whole(compiled):
    """A column at a time, so that each of them once lies beside what is not decoded."""
    for sampling in SAMPLINGS:
        data = simplejpeg.encode_jpeg(soft(333, 40, 7), 80, "RGB", sampling)
        whole = expected(data, Resizing((332, 39), Part(0, 0, 332, 39), BICUBIC))
        for left in range(332):
            found = compiled.resize_jpeg(data, (333, 40), Resizing((332, 39), Part(left, 0, 1, 39), BICUBIC))
            assert np.array_equal(found.pixels, whole[:, left : left + 1]), f"{sampling}, column {left}"


@pytest.mark.parametrize("options", [{"restart_marker_blocks": 3}, {"optimize": True}, {"quality": 100}], ids=str)
def test_files_as_pillow_writes_them(compiled, options):
    data = encode(Image.fromarray(soft(300, 200, 1)), "jpeg", **options)
    resizing = Resizing((150, 100), Part(25, 0, 100, 100), BICUBIC)
    found = compiled.resize_jpeg(data, (300, 200), resizing)
    assert np.array_equal(found.pixels, PLAIN.resize_part(decode_pixels(data, MediaSettings()), *resizing))


RESIZING = Resizing((40, 30), Part(5, 0, 30, 30), BICUBIC)


@pytest.mark.parametrize(
    "data",
    [
        encode(noise(80, 60), "jpeg", progressive=True),
        encode(noise(80, 60).convert("L"), "jpeg"),
        encode(noise(80, 60).convert("CMYK"), "jpeg"),
        encode(noise(80, 60), "jpeg", keep_rgb=True),
        encode(noise(80, 60), "png"),
        with_frame_size(encode(noise(80, 60), "jpeg"), 80, 61),
        with_frame_size(encode(noise(80, 60), "jpeg"), 81, 60),
        b"",
        b"\xff\xd8",
    ],
    ids=["progressive", "grey", "CMYK", "RGB", "PNG", "higher", "wider", "empty", "start"],
)
def test_other_files_are_left_to_others(data):
    assert native.NativeKernels().resize_jpeg(data, (80, 60), RESIZING) is None


@pytest.mark.parametrize("size", [(80, 30), (40, 60), (80, 60), (79, 10)])
def test_resizes_that_begin_downwards_or_keep_a_side_are_left_to_others(size):
    data = encode(noise(80, 60), "jpeg")
    assert native.NativeKernels().resize_jpeg(data, (80, 60), Resizing(size, Part(0, 0, *size), BICUBIC)) is None


@pytest.mark.parametrize("wanted", [(-1, 0, 20, 20), (30, 0, 20, 20), (0, 20, 20, 20), (0, 0, 0, 20)])
def test_a_part_outside_of_the_resize_is_refused(wanted):
    with pytest.raises(ValueError, match=r"outside|sides must"):
        native.NativeKernels().resize_jpeg(
            encode(noise(80, 60), "jpeg"), (80, 60), Resizing((40, 30), Part(*wanted), BICUBIC)
        )


def test_no_cut_off_file_is_taken():
    data = encode(noise(80, 60), "jpeg")
    kernels = native.NativeKernels()
    assert kernels.resize_jpeg(data, (80, 60), RESIZING) is not None
    assert all(kernels.resize_jpeg(data[:end], (80, 60), RESIZING) is None for end in range(len(data)))


def test_broken_files_give_the_same_pixels_as_before_or_nothing():
    """Also where what is broken lies in columns or rows that nobody looks at."""
    rng, kernels, num_taken = random.Random(3), native.NativeKernels(), 0
    for seed in range(600):
        data = bytearray(encode(Image.fromarray(soft(80, 60, seed)), "jpeg", quality=rng.randint(10, 95)))
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(2, len(data))] = rng.randrange(256)
        found = kernels.resize_jpeg(bytes(data), (80, 60), RESIZING)
        if found is None:
            continue
        num_taken += 1
        try:
            pixels = decode_pixels(bytes(data), MediaSettings())
        except MediaError as error:
            raise AssertionError(f"seed {seed} was taken, and refused before") from error
        assert np.array_equal(found.pixels, PLAIN.resize_part(pixels, *RESIZING)), f"seed {seed}"
    assert num_taken > 20


MODEL = {"vision_config": {"model_type": "clip_vision_model", "image_size": 32, "patch_size": 16}}
PROCESSOR = {"size": {"shortest_edge": 32}, "crop_size": 32}


class OneAfterTheOther(ClipPreparer):
    """Decodes all of a picture first."""

    def resizing(self, width, height):
        return None


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [(90, 64), (64, 90), (33, 32), (32, 32), (31, 20)])
def test_a_prepared_picture_is_the_same_as_before(tmp_path, size, orientation):
    exif = Image.Exif()
    exif[274] = orientation
    data = encode(gradient(*size), "jpeg", quality=90, exif=exif)
    upright = Announced(*(size if orientation < 5 else size[::-1]))
    found, wanted = (
        prepare_medium(data, upright, kind(tmp_path, PROCESSOR, MODEL), MediaSettings()).prepared.arrays
        for kind in (ClipPreparer, OneAfterTheOther)
    )
    assert np.array_equal(found["pixel_values"], wanted["pixel_values"])


def test_the_stages_are_told_apart(tmp_path):
    data = encode(noise(900, 640), "jpeg", quality=90)
    timed = prepare_medium(data, Announced(900, 640), ClipPreparer(tmp_path, PROCESSOR, MODEL), MediaSettings())
    assert timed.started < timed.decoded < timed.ended
