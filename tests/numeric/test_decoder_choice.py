"""Which decoder a model gets, and what is said when it cannot be the one asked for."""

import os

import pytest
import torch

from chiasm.engines.embedded.decoder import native_decoder
from chiasm.engines.embedded.decoder.native_decoder import NativeDecoder
from chiasm.engines.embedded.decoder.registry import make_decoder
from chiasm.engines.embedded.decoder.torch_decoder import TorchDecoder
from chiasm.errors import EngineStartError
from tests.numeric.decoder_models import NATIVE, loaded, reference_model

needs_native = pytest.mark.skipif(not NATIVE, reason="installed without a compiler: the C decoder is not there")


def make(kind, model):
    return make_decoder(loaded(model), None, kind=kind, pack_weights=True, threads=1)


@needs_native
def test_the_native_one_is_taken_where_it_can_be_used():
    assert isinstance(make("auto", reference_model("plain")), NativeDecoder)
    assert isinstance(make("native", reference_model("plain", torch.bfloat16)), NativeDecoder)
    assert isinstance(make("torch", reference_model("plain")), TorchDecoder)


def test_without_the_library_torch_computes_and_asking_for_native_explains(monkeypatch):
    monkeypatch.setattr(native_decoder, "library", None)
    assert isinstance(make("auto", reference_model("plain")), TorchDecoder)
    with pytest.raises(EngineStartError, match="not built") as caught:
        make("native", reference_model("plain"))
    assert "gcc" in caught.value.hint


@needs_native
@pytest.mark.parametrize(
    ("dtype", "head_dim", "reason"), [(torch.float16, None, "torch.float16"), (torch.float32, 18, "heads of 18")]
)
def test_a_model_it_has_no_code_for_is_computed_by_torch(monkeypatch, dtype, head_dim, reason):
    model = reference_model("plain", dtype)
    if head_dim is not None:
        model.model.config.head_dim = head_dim
    problem = native_decoder.native_problem(loaded(model))
    assert problem is not None
    assert reason in problem
    with pytest.raises(EngineStartError, match=reason):
        make("native", model)


def test_a_machine_of_more_cores_than_the_c_code_takes_threads_is_used_as_far_as_it_goes(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 384)
    assert native_decoder.threads_for(0) == native_decoder.MOST_THREADS
    assert [native_decoder.threads_for(asked) for asked in (1, 7, 300)] == [1, 7, native_decoder.MOST_THREADS]
