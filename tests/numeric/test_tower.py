"""The vision tower in C against that of transformers, and against itself, bit for bit."""

import random
import threading
from functools import cache

import msgspec
import numpy as np
import pytest
import torch

from chiasm.engines.embedded.decoder import native_decoder
from chiasm.engines.embedded.families.registry import family_for
from chiasm.engines.embedded.tower import native_tower
from chiasm.engines.embedded.tower.native_tower import NativeTower, tower_problem
from chiasm.engines.embedded.tower.pause import Pause
from chiasm.engines.embedded.tower.registry import make_tower
from chiasm.engines.embedded.tower.torch_tower import TorchTower
from chiasm.engines.embedded.tower.weights import tower_shape
from tests.conditions import NewThreads
from tests.numeric.random_models import build
from tests.numeric.tower_models import CONFIGS, NATIVE, make, native_kinds, pictures, vision_model

pytestmark = pytest.mark.skipif(not NATIVE, reason="installed without a compiler: the C tower is not there")

SIZES = ("generic", 1, 1, 8, 1, 8, 8, 3, 2, 4, 2, 8, 0, 0, False, False, "gelu", 1e-6, 1.0, 0.0)


@cache
def reference(name):
    return TorchTower(vision_model(name))


@cache
def images(name):
    return pictures(reference(name))


@torch.inference_mode()
def encode(tower, prepared):
    return tower.encode(prepared)


@cache
def alone(name, kind):
    tower = make(kind, reference(name).vision)
    return [encode(tower, [image]) for image in images(name)]


@pytest.mark.parametrize(("name", "kind"), NATIVE)
def test_embeddings_are_those_of_transformers(name, kind):
    ours = encode(make(kind, reference(name).vision, threads=2), images(name))
    theirs = encode(reference(name), images(name))
    assert ours.shape == theirs.shape
    width = tower_shape(reference(name).vision).out_hidden_size
    for level, (mine, other) in enumerate(zip(ours.split(width, -1), theirs.split(width, -1), strict=True)):
        assert (mine - other).abs().max() <= 3e-5 * other.abs().max(), level


@pytest.mark.parametrize(("name", "kind"), NATIVE)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_company_order_and_threads_do_not_change_a_bit(name, kind, threads):
    tower = make(kind, reference(name).vision, threads=threads)
    for order in ([0, 1, 2, 3, 4], [4, 2, 0], [1, 1, 3], [2]):
        together = encode(tower, [images(name)[number] for number in order])
        assert torch.equal(together, torch.cat([alone(name, kind)[number] for number in order]))


@pytest.mark.parametrize(("name", "kind"), NATIVE)
def test_bfloat16_weights_compute_as_their_float32_values(name, kind):
    narrow = TorchTower(vision_model(name, torch.bfloat16))
    wide = TorchTower(vision_model(name, torch.bfloat16).float())
    # a kernel's frames are added up in the type of the weights
    wide.vision.patch_embed.weight = narrow.vision.patch_embed.weight.float()
    wide.vision.rotary_pos_emb = narrow.vision.rotary_pos_emb
    results = [encode(make(kind, tower.vision), images(name)) for tower in (narrow, wide)]
    assert results[0].dtype is torch.bfloat16
    assert torch.equal(results[0], results[1].bfloat16())


@pytest.mark.parametrize(("name", "kind"), NATIVE)
def test_a_picture_that_is_not_finite_stays_alone(name, kind):
    broken = msgspec.structs.replace(
        images(name)[0], arrays={"pixel_values": images(name)[0].arrays["pixel_values"].copy()}
    )
    broken.arrays["pixel_values"][0, 0] = np.nan
    others = images(name)[1:]
    rows = encode(make(kind, reference(name).vision, threads=2), [others[0], broken, *others[1:]])
    first, size = others[0].plan.num_embeddings, broken.plan.num_embeddings
    assert rows[first : first + size].isnan().any()
    rest = torch.cat([rows[:first], rows[first + size :]])
    assert torch.equal(rest, torch.cat(alone(name, kind)[1:]))


def test_hundreds_of_batches_with_more_threads_than_cores():
    name, rng = "qwen3", random.Random(5)
    kind = native_kinds(name)[0]
    tower = make(kind, reference(name).vision, threads=3)
    for _ in range(400):
        order = [rng.randrange(5) for _ in range(rng.randint(1, 3))]
        expected = torch.cat([alone(name, kind)[number] for number in order])
        assert torch.equal(encode(tower, [images(name)[number] for number in order]), expected)


def test_small_pictures_are_computed_by_the_caller_alone():
    kind = native_kinds("qwen3")[0]
    tower = NativeTower(reference("qwen3").vision, threads=2, kernels=kind)
    assert torch.equal(encode(tower, images("qwen3")), torch.cat(alone("qwen3", kind)))


def test_tables_grow_with_the_pictures():
    tower, image = make("generic", reference("qwen3").vision), images("qwen3")[3]
    patches = image.arrays["pixel_values"]
    plan = msgspec.structs.replace(image.plan, grid_thw=(1, 2, 180), num_embeddings=90)
    long = msgspec.structs.replace(image, plan=plan, arrays={"pixel_values": np.concatenate([patches] * 3)})
    torch.testing.assert_close(encode(tower, [long]), encode(reference("qwen3"), [long]), rtol=1e-4, atol=1e-3)
    assert torch.equal(encode(tower, images("qwen3")), torch.cat(alone("qwen3", "generic")))


def with_plan(image, **changes):
    return msgspec.structs.replace(image, plan=msgspec.structs.replace(image.plan, **changes))


@pytest.mark.parametrize(
    ("grid", "reason"),
    [
        ((1, 10, 14), "more patches than"),
        ((1, 10, 18), "fewer patches than"),
        ((1, 5, 32), "whole squares"),
        ((1, -10, -16), "whole squares"),
        ((1, 2**40, 2**40), "larger than"),
        ((2, 10, 16), "fewer patches than"),
    ],
)
def test_grids_that_do_not_fit_the_patches_are_refused(grid, reason, monkeypatch):
    tower, image = make("generic", reference("qwen3").vision), images("qwen3")[0]
    monkeypatch.setattr(tower._rotary, "up_to", lambda n: (torch.zeros(64, 4), torch.zeros(64, 4)))
    with pytest.raises(ValueError, match=reason):
        encode(tower, [with_plan(image, grid_thw=grid)])
    monkeypatch.undo()
    assert torch.equal(encode(tower, [image]), alone("qwen3", "generic")[0])


def test_patches_of_other_types_and_sizes_are_refused():
    tower, image = make("generic", reference("qwen3").vision), images("qwen3")[0]
    patches = image.arrays["pixel_values"]
    for wrong in (patches.astype(np.float16), patches[:, :-1], np.asfortranarray(patches)):
        with pytest.raises(ValueError, match="pixel_values must be"):
            encode(tower, [msgspec.structs.replace(image, arrays={"pixel_values": wrong})])


def test_windows_and_orders_that_do_not_fit_are_refused(monkeypatch):
    tower, image = make("generic", reference("qwen2.5").vision), images("qwen2.5")[0]
    order, windows = tower._windows.of(np.array([image.plan.grid_thw[1:]]))
    wrong = [
        (order, windows[:-1], "not all patches"),
        (order, windows.index_fill(0, torch.tensor([0]), 10**6), "other than its patches"),
        (order, windows.index_fill(0, torch.tensor([0]), 0), "other than its patches"),
        (order - 1, windows, "square that is not there"),
        (order + 1, windows, "square that is not there"),
    ]
    for bad_order, bad_windows, reason in wrong:
        monkeypatch.setattr(tower._windows, "of", lambda _, found=(bad_order, bad_windows): found)
        with pytest.raises(ValueError, match=reason):
            encode(tower, [image])
    monkeypatch.undo()
    assert torch.equal(encode(tower, [image]), alone("qwen2.5", "generic")[0])


def test_memory_that_is_refused_is_an_ordinary_error():
    tower, library = make("generic", reference("qwen3").vision), native_decoder.library
    lacking = library.NativeTower(
        "generic", 1, 1, 2**44, 1, 8, 8, 3, 2, 4, 2, 8, 0, 0, False, False, "gelu", 1e-6, 1.0, 0.0
    )
    with pytest.raises(MemoryError):
        lacking.set_layer(0, False, *[0] * 12)
    side = 2**15 - 2
    with pytest.raises(MemoryError):
        tower._native.encode(side**2, 0, np.array([[side, side]]).ctypes.data, 1, 0, 0, 0, 0, 0, side, 0)
    assert torch.equal(encode(tower, images("qwen3")), torch.cat(alone("qwen3", "generic")))


def test_a_tower_without_weights_is_refused():
    lacking = native_decoder.library.NativeTower(*SIZES)
    with pytest.raises(ValueError, match="weights that were not set"):
        lacking.encode(4, 0, np.array([[2, 2]]).ctypes.data, 1, 0, 0, 0, 0, 0, 2, 0)


@pytest.mark.parametrize(("place", "value"), [(2, 0), (5, 6), (10, 0), (12, -2), (1, 0), (1, 257), (16, "sine")])
def test_sizes_that_make_no_sense_are_refused(place, value):
    native_decoder.library.NativeTower(*SIZES)
    arguments = [*SIZES[:place], value, *SIZES[place + 1 :]]
    with pytest.raises(ValueError, match=r"must|no such activation"):
        native_decoder.library.NativeTower(*arguments)


def test_threads_end_with_the_tower():
    started = NewThreads()
    closed, forgotten = (make("generic", reference("qwen3").vision, threads=n) for n in (4, 2))
    assert len(started) == 4
    closed.close()
    closed.close()
    del forgotten
    started.until_gone()
    with pytest.raises(ValueError, match="closed"):
        encode(closed, images("qwen3"))


def test_a_second_thread_is_refused_while_one_computes():
    tower, many = make("generic", reference("qwen3").vision), images("qwen3") * 20
    stop, refused = threading.Event(), []

    def compute():
        while not stop.is_set():
            try:
                encode(tower, many)
            except RuntimeError as error:
                refused.append(error)
                stop.set()

    threads = [threading.Thread(target=compute) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert stop.wait(30), "two threads never met"
    for thread in threads:
        thread.join(30)
    assert "another thread" in str(refused[0])


def pausing(name, give_way, **options):
    """A tower whose pause is asked for, and which looks as often as it can."""
    pause = Pause(give_way)
    pause.ask()
    return NativeTower(reference(name).vision, pause=pause, **options), pause


class TestPauses:
    """What the engine does between two pieces of a batch."""

    @pytest.fixture(autouse=True)
    def _small_pieces(self, monkeypatch):
        monkeypatch.setattr(native_tower, "PIECE_PRODUCTS", 0.0)

    @pytest.mark.parametrize(("name", "kind"), NATIVE)
    @pytest.mark.parametrize("threads", [1, 2])
    def test_the_result_is_the_same_bit_for_bit(self, name, kind, threads):
        pauses = []
        tower, _ = pausing(name, lambda: pauses.append(1), threads=threads, kernels=kind, alone_products=0)
        model = reference(name).vision
        assert torch.equal(encode(tower, images(name)), encode(make(kind, model), images(name)))
        num_patches = sum(len(image.pixel_values()) for image in images(name))
        num_pieces = -(-num_patches // (52 * threads))
        assert len(pauses) >= model.config.depth * (1 + num_pieces)  # attention, and up to 52 rows a thread at a time

    def test_a_piece_is_as_large_as_is_said(self, monkeypatch):
        found = []
        for products in (0.0, 1e5, 1e6, 1e12):
            monkeypatch.setattr(native_tower, "PIECE_PRODUCTS", products)
            pauses = []
            tower, _ = pausing("qwen3", lambda seen=pauses: seen.append(1), threads=1)
            encode(tower, images("qwen3"))
            found.append(len(pauses))
        assert found[0] > found[1] > found[2] > found[3]

    def test_a_piece_has_something_for_each_thread(self):
        found = []
        for threads in (1, 2, 3):
            pauses = []
            tower, _ = pausing("qwen3", lambda seen=pauses: seen.append(1), threads=threads, alone_products=0)
            encode(tower, images("qwen3"))
            found.append(len(pauses))
        assert found[0] > found[1] > found[2]

    def test_there_are_none_unless_asked_for_and_none_after_that(self):
        pauses = []

        def give_way():
            pause.clear()
            pauses.append(1)

        tower, pause = pausing("qwen3", give_way, threads=2)
        for num_pauses in (1, 1):
            encode(tower, images("qwen3"))
            assert len(pauses) == num_pauses

    def test_what_one_raises_ends_the_call_and_nothing_else(self):
        failures = [ValueError("no")]
        tower, _ = pausing("qwen3", lambda: failures and _raise(failures.pop()), threads=2)
        with pytest.raises(ValueError, match="no"):
            encode(tower, images("qwen3"))
        assert torch.equal(encode(tower, images("qwen3")), encode(make("", reference("qwen3").vision), images("qwen3")))

    def test_one_cannot_use_the_tower(self):
        tower, _ = pausing("qwen3", lambda: encode(tower, images("qwen3")), threads=1)
        with pytest.raises(RuntimeError, match="in use"):
            encode(tower, images("qwen3"))


def _raise(error):
    raise error


class TestChoice:
    def test_the_native_one_is_taken_where_it_can_be_used(self):
        for kind in ("auto", "native"):
            assert isinstance(make_tower(reference("qwen3"), kind=kind, threads=1), NativeTower)
        assert make_tower(reference("qwen3"), kind="torch", threads=1) is reference("qwen3")

    def test_other_families_keep_their_own(self):
        model = object()
        assert make_tower(model, kind="native", threads=1) is model
        assert make_tower(None, kind="auto", threads=1) is None

    def test_without_the_library_torch_computes(self, monkeypatch):
        monkeypatch.setattr(native_decoder, "library", None)
        assert make_tower(reference("qwen3"), kind="native", threads=1) is reference("qwen3")

    @pytest.mark.parametrize(
        ("changes", "dtype", "reason"),
        [
            ({"hidden_size": 36}, torch.float32, "heads of 18"),
            ({"hidden_act": "relu"}, torch.float32, "activation relu"),
            ({}, torch.float16, "torch.float16"),
        ],
    )
    def test_a_tower_it_has_no_code_for_is_computed_by_torch(self, monkeypatch, changes, dtype, reason):
        monkeypatch.setitem(CONFIGS, "changed", ("qwen3_vl", changes))
        tower = TorchTower(vision_model("changed", dtype))
        assert reason in tower_problem(tower.vision)
        assert make_tower(tower, kind="auto", threads=1) is tower

    def test_other_model_types_are_computed_by_torch(self):
        tower = TorchTower(vision_model("qwen3"))
        tower.vision.config.model_type = "another"
        assert "another" in tower_problem(tower.vision)

    @pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
    def test_loaded_families_get_it(self, tmp_path, family):
        model = family_for(build(family, tmp_path)).load(torch.float32)
        assert isinstance(make_tower(model.vision, kind="auto", threads=1), NativeTower)
