"""The loops in C and those of Pillow and numpy give the same bits; so a machine without a compiler does, too."""

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from chiasm.media.kernels import registry
from chiasm.media.kernels.base import Part
from chiasm.media.kernels.plain import PlainKernels

native = pytest.importorskip("chiasm.media.kernels.native", reason="built without a C compiler")
PLAIN = PlainKernels()
LANCZOS, BILINEAR, BICUBIC = 1, 2, 3


@pytest.fixture(params=native._native.names())
def compiled(request):
    return native.NativeKernels(request.param)


def noise(width, height, seed=0):
    """Hard edges are the worst case of every rounding."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return pixels if seed % 2 else np.where(pixels > 127, 255, 0).astype(np.uint8)


def sides(rng):
    return rng.choice([rng.randint(1, 40), rng.randint(1, 300), rng.randint(1, 700)])


def test_a_resize_has_pillows_bits(compiled):
    rng = random.Random(7)
    for seed in range(250):
        width, height, *size = (sides(rng) for _ in range(4))
        pixels, resample = noise(width, height, seed), rng.choice([LANCZOS, BILINEAR, BICUBIC])
        ours = compiled.resize(pixels, tuple(size), resample)
        theirs = np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling(resample)))
        assert np.array_equal(ours, theirs), f"{width} x {height} to {size}, filter {resample}"


def a_part(rng, width, height):
    left, top = rng.randrange(width), rng.randrange(height)
    return Part(left, top, rng.randint(1, width - left), rng.randint(1, height - top))


def test_a_part_of_a_resize_is_that_of_the_whole(compiled):
    rng = random.Random(5)
    for seed in range(250):
        whole, size = (sides(rng), sides(rng)), (sides(rng), sides(rng))
        if seed % 5 == 0:
            size = (whole[0], size[1]) if seed % 2 else (size[0], whole[1])
        pixels, resample, wanted = noise(*whole, seed), rng.choice([LANCZOS, BILINEAR, BICUBIC]), a_part(rng, *size)
        expected = cut_out(PLAIN.resize(pixels, size, resample), wanted)
        for one in (compiled, PLAIN):
            found = one.resize_part(pixels, size, wanted, resample)
            assert np.array_equal(found, expected), f"{whole} to {size}, {wanted}, filter {resample}"


def cut_out(pixels, part):
    return pixels[part.top : part.top + part.height, part.left : part.left + part.width]


@pytest.mark.parametrize("wanted", [(-1, 0, 50, 40), (60, 0, 50, 40), (0, 41, 50, 40), (0, 0, 0, 40)])
def test_a_part_outside_of_the_resize_is_refused(compiled, wanted):
    with pytest.raises(ValueError, match=r"outside|sides must"):
        compiled.resize_part(noise(300, 200), (100, 80), Part(*wanted), BICUBIC)


@pytest.mark.parametrize(
    ("size", "to"),
    [
        ((1170, 2532), (280, 644)),
        ((640, 480), (644, 476)),
        ((800, 600), (812, 588)),
        ((1, 2000), (3, 7)),
        ((2000, 1), (5, 1)),
        ((7, 5000), (7, 13)),
        ((5000, 7), (14, 7)),
        ((3000, 14), (14, 14)),
        ((64, 64), (64, 32)),
        ((64, 64), (32, 64)),
    ],
)
def test_sizes_whose_passes_pillow_orders_differently(compiled, size, to):
    for resample in (LANCZOS, BICUBIC):
        pixels = noise(*size)
        assert np.array_equal(compiled.resize(pixels, to, resample), PLAIN.resize(pixels, to, resample))


@pytest.mark.parametrize("width", [40, 61, 120, 250, 500, 700, 1100, 2500])
def test_however_far_apart_what_is_read_lies(compiled, width):
    """Loops choose by this distance how many samples they make at once, and how much they read."""
    for seed, to in enumerate(((61, 21), (62, 37), (60, 7))):
        pixels = noise(width, 41, seed)
        for resample in (LANCZOS, BILINEAR, BICUBIC):
            assert np.array_equal(compiled.resize(pixels, to, resample), PLAIN.resize(pixels, to, resample))


def test_threads_that_resize_at_once_keep_to_their_weights(compiled):
    """Weights are kept for the next picture of the same size, and lent to one thread at a time."""
    rng = random.Random(3)
    sizes = [((rng.randint(20, 90), rng.randint(20, 90)), (rng.randint(20, 90), rng.randint(20, 90))) for _ in range(7)]
    pictures = {size: noise(*size[0]) for size in sizes}
    expected = {size: PLAIN.resize(pictures[size], size[1], BICUBIC) for size in sizes}
    with ThreadPoolExecutor(4) as pool:
        asked = [rng.choice(sizes) for _ in range(600)]
        found = pool.map(lambda size: compiled.resize(pictures[size], size[1], BICUBIC), asked)
        assert all(np.array_equal(one, expected[size]) for one, size in zip(found, asked, strict=True))


def test_a_panorama_for_which_no_tables_are_made(compiled):
    pixels = noise(300_000, 4)
    assert np.array_equal(compiled.resize(pixels, (100_000, 3), LANCZOS), PLAIN.resize(pixels, (100_000, 3), LANCZOS))


def test_other_filters_are_left_to_pillow(compiled):
    pixels = noise(50, 40)
    for resample in (0, 4, 5):
        assert np.array_equal(compiled.resize(pixels, (30, 20), resample), PLAIN.resize(pixels, (30, 20), resample))
        ours = compiled.patches(pixels, (30, 20), resample, 5)
        assert np.array_equal(ours, PLAIN.patches(pixels, (30, 20), resample, 5))


@pytest.mark.parametrize(("patch", "merge"), [(14, 2), (16, 2), (8, 1), (7, 3), (84, 1), (1, 1)])
def test_patches_are_those_of_the_resized_picture(compiled, patch, merge):
    to = (3 * patch * merge, 2 * patch * merge)
    for size in (to, (84, 336), (100, 50)):
        pixels = noise(*size)
        ours = compiled.patches(pixels, to, BICUBIC, patch, merge)
        assert np.array_equal(ours, PLAIN.patches(pixels, to, BICUBIC, patch, merge))


def test_patches_go_from_left_to_right_square_by_square(compiled):
    pixels = np.repeat(np.arange(16, dtype=np.uint8).reshape(4, 4)[..., None], 3, -1)
    for kernels in (compiled, PLAIN):
        assert kernels.patches(pixels, (4, 4), BICUBIC, 1).reshape(16, 3)[:, 1].tolist() == list(range(16))
        merged = kernels.patches(pixels, (4, 4), BICUBIC, 1, 2).reshape(16, 3)[:, 2].tolist()
        assert merged == [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15]


def test_every_value_is_looked_up_in_its_channel(compiled):
    samples = np.stack([np.arange(256), np.arange(256)[::-1], np.full(256, 7)]).astype(np.uint8)[None]
    table = np.random.default_rng(0).random((3, 256), np.float32)
    for kernels in (compiled, PLAIN):
        floats = kernels.look_up(samples, table, 2)
        assert floats.shape == (1, 3, 2, 256)
        for frame in (0, 1):
            assert np.array_equal(floats[0, 0, frame], table[0])
            assert np.array_equal(floats[0, 1, frame], table[1][::-1])
            assert np.array_equal(floats[0, 2, frame], np.full(256, table[2][7]))


@pytest.mark.parametrize("plane", [1, 63, 64, 65, 127, 196, 256, 1000])
def test_planes_of_any_length_are_looked_up(compiled, plane):
    samples = np.random.default_rng(plane).integers(0, 256, (5, 3, plane), np.uint8)
    table = np.random.default_rng(0).standard_normal((3, 256)).astype(np.float32)
    for frames in (1, 3):
        assert np.array_equal(compiled.look_up(samples, table, frames), PLAIN.look_up(samples, table, frames))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_turned_alike(compiled, orientation):
    for size in ((1, 1), (1, 70), (45, 33), (64, 32)):
        pixels = noise(*size)
        assert np.array_equal(compiled.turn(pixels, orientation), PLAIN.turn(pixels, orientation))


def test_unknown_png_filters_are_left_to_pillow(compiled):
    assert compiled.unfilter(bytes([5, 1, 2, 3]), (1, 1), 3) is None
    assert compiled.unfilter(bytes([0, 1, 2, 3]), (1, 1), 3).tolist() == [[[1, 2, 3]]]
    assert compiled.unfilter(bytes([0, 1, 2, 3, 254]), (1, 1), 4) is None


@pytest.mark.parametrize(
    "call",
    [
        ("resize", b"123", 1, 1, 3, 2, 2, 3, bytearray(11), 0, 1, "auto"),
        ("resize", b"1234", 1, 1, 3, 2, 2, 3, bytearray(12), 0, 1, "auto"),
        ("resize", b"123", 1, 1, 3, 0, 2, 3, bytearray(12), 0, 1, "auto"),
        ("resize", b"123", 1, 1, 3, 2, 2, 7, bytearray(12), 0, 1, "auto"),
        ("resize", b"123", 1, 1, 3, 2, 2, 3, bytearray(12), 0, 1, "mmx"),
        ("resize", b"123", 1, 1, 3, 3, 2, 3, bytearray(18), 2, 1, "auto"),
        ("resize", b"123", 1, 1, 3, 2, 2, 3, bytearray(12), 2, 0, "auto"),
        ("resize", b"1" * 5, 1, 1, 5, 2, 2, 3, bytearray(12), 0, 1, "auto"),
        ("look_up", b"123", b"", 1, 1, 1, bytearray(12), "auto"),
        ("look_up", b"1234", bytes(3072), 1, 1, 1, bytearray(12), "auto"),
        ("look_up", b"123", bytes(3072), 1, 1, 2, bytearray(12), "auto"),
        ("look_up", b"", bytes(3072), 0, 1, 1, bytearray(0), "auto"),
        ("look_up", b"123", bytes(3072), 1, 1, 1, bytearray(12), "mmx"),
        ("turn", b"123", 1, 1, 3, 1, bytearray(3)),
        ("turn", b"123", 1, 1, 3, 2, bytearray(4)),
        ("turn", b"123", 2, 1, 3, 2, bytearray(3)),
        ("unfilter", b"1234", 1, 2, 3, bytearray(6)),
        ("unfilter", b"1234", 1, 1, 3, bytearray(4)),
        ("unfilter", b"1234", 1, 1, 2, bytearray(3)),
    ],
)
def test_sizes_that_do_not_fit_are_refused(call):
    with pytest.raises(ValueError, match=r"must|not|fit|no such|does"):
        getattr(native._native, call[0])(*call[1:])


def test_the_compiled_loops_are_taken_where_there_are_any():
    assert registry.kernels().name == "native"


def test_without_them_pillow_does_the_work(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "chiasm.media.kernels.native", None)
    assert registry.kernels.__wrapped__().name == "plain"
