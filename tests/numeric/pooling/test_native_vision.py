"""Layers of image towers in C against transformers, and against themselves, bit for bit."""

import copy

import pytest
import torch
from transformers import AutoConfig, AutoModel

from chiasm.engines.embedded.decoder import native_decoder
from chiasm.engines.pooling import packing
from chiasm.engines.pooling.backbone import Computing, arranged_tower
from chiasm.engines.pooling.native_vision import NativeLayers, vision_problem
from chiasm.engines.pooling.packing import packed
from tests.conditions import NewThreads

KINDS = [kind for kind in ("generic", "avx2", "avx512") if native_decoder.kernels_for(16, kind)]
SHAPE = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 72,
    "image_size": 56,
    "patch_size": 7,
}

pytestmark = pytest.mark.skipif(not KINDS, reason="installed without a compiler: the C layers are not there")


def reference(model_type="clip_vision_model", **config):
    torch.manual_seed(3)
    return AutoModel.from_config(AutoConfig.for_model(model_type, **(SHAPE | config))).eval()


def native(vision, **options):
    found = copy.deepcopy(vision)
    found.encoder = NativeLayers(vision, **{"threads": 1, "alone_products": 0} | options)
    return found


@torch.inference_mode()
def rows(vision, pixels):
    out = vision(pixel_values=pixels)
    return out.last_hidden_state, out.pooler_output


def pictures(count=3):
    return torch.randn(count, 3, 56, 56, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model_type", ["clip_vision_model", "siglip_vision_model"])
@pytest.mark.parametrize("activation", ["gelu", "gelu_pytorch_tanh", "quick_gelu"])
def test_rows_are_those_of_transformers(kind, model_type, activation):
    vision = reference(model_type, hidden_act=activation)
    for found, wanted in zip(rows(native(vision, kernels=kind), pictures()), rows(vision, pictures()), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


def test_company_and_threads_change_no_bit():
    vision = reference()
    alone = native(vision)
    wanted = torch.cat([rows(alone, one[None])[0] for one in pictures()])
    assert torch.equal(rows(alone, pictures())[0], wanted)
    several = native(vision, threads=3)
    assert torch.equal(rows(several, pictures())[0], wanted)
    several.encoder.is_alone = True
    assert torch.equal(rows(several, pictures())[0], wanted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("count", [1, 3, 60])
def test_the_first_rows_alone_are_the_same_bits(kind, threads, count):
    vision = reference()
    whole = rows(native(vision, kernels=kind), pictures(count))
    found = rows(native(vision, kernels=kind, threads=threads, only_first=True), pictures(count))
    assert torch.equal(found[0], whole[0][:, :1])
    assert torch.equal(found[1], whole[1])


@pytest.mark.parametrize("model_type", ["clip_vision_model", "siglip_vision_model"])
@torch.inference_mode()
def test_patches_are_multiplied_to_the_same_bits_by_weights_in_order(model_type):
    embeddings = reference(model_type, patch_size=9).embeddings  # 2 of 56 pixels are in no patch
    wanted = embeddings(pictures())
    found = packed(copy.deepcopy(embeddings), torch.float32)
    assert not isinstance(found.patch_embedding, torch.nn.Conv2d)
    assert torch.equal(found(pictures()), wanted)
    assert torch.equal(torch.cat([found(one[None]) for one in pictures()]), wanted)


def test_convolutions_that_it_cannot_order_stay_with_torch(monkeypatch):
    for options in ({"padding": "same"}, {"padding": 1, "padding_mode": "reflect"}):
        layer = torch.nn.Conv2d(3, 8, 3, **options)
        assert packed(layer, torch.float32) is layer
    monkeypatch.setattr(packing, "_convolution_packs", lambda dtype: False)
    layer = torch.nn.Conv2d(3, 8, 3)
    assert packed(layer, torch.float32) is layer


def test_rows_that_are_not_there_are_refused():
    layers = NativeLayers(reference(), threads=1, only_first=True)
    encode, rows, out = layers._native.encode, torch.zeros(4, 64), torch.empty(4, 64)
    grids, table = torch.tensor([[4, 1]]), torch.ones(4, 4)
    for kept in ([], [4], [-1], [1, 1], [2, 1]):
        wanted = torch.tensor(kept, dtype=torch.int64)
        places = [one.data_ptr() for one in (table, table)]
        with pytest.raises(ValueError, match="row"):
            encode(
                4, rows.data_ptr(), grids.data_ptr(), 1, 0, 0, 0, *places, 4, out.data_ptr(), None, True, 0, 0.0,
                wanted.data_ptr() or out.data_ptr(), len(kept),
            )  # fmt: skip


def test_what_it_cannot_compute_stays_with_torch():
    assert vision_problem(reference(), torch.float32) is None
    for problem, vision in (
        ("activation relu", reference(hidden_act="relu")),
        ("heads of 6", reference(hidden_size=24)),
        ("siglip2_vision_model", reference("siglip2_vision_model", num_patches=64)),
    ):
        assert problem in vision_problem(vision, torch.float32)
    assert "bfloat16" in vision_problem(reference(), torch.bfloat16)
    for computing in (Computing(torch.bfloat16), Computing(torch.float32, kind="torch")):
        vision = reference()
        encoder = vision.encoder
        assert arranged_tower(vision, computing).encoder is encoder
    assert isinstance(arranged_tower(reference(), Computing(torch.float32)).encoder, NativeLayers)


def test_closing_ends_its_threads():
    new = NewThreads()
    layers = NativeLayers(reference(), threads=3)
    assert len(new) >= 2
    layers.close()
    layers.close()
    new.until_gone()
