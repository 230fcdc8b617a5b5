"""The C row operations against torch's, over dtypes, shapes and ragged contexts."""

import numpy as np
import pytest
import torch

from chiasm.engines.embedded.decode_rows import DecodeRows
from chiasm.engines.embedded.rotary import Rotary
from chiasm.engines.embedded.row_ops import AttentionShape, CRowOps, TorchRowOps, kernels

needs_kernels = pytest.mark.skipif(kernels is None, reason="installed without a compiler: the C kernels are not there")
DTYPES = {torch.float32: 2e-6, torch.bfloat16: 2e-2}
TORCH = TorchRowOps()


@pytest.fixture(scope="module")
def c_ops() -> CRowOps:
    assert kernels is not None
    return CRowOps(kernels)


def close(ours: torch.Tensor, theirs: torch.Tensor, dtype: torch.dtype) -> bool:
    scale = max(1.0, theirs.float().abs().max().item())
    return bool((ours.float() - theirs.float()).abs().max() <= DTYPES[dtype] * scale)


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 64), (3, 100), (16, 768), (32, 33)])
def test_norm_and_activation(c_ops, dtype, rows, width):
    torch.manual_seed(rows)
    x, weight = (torch.randn(rows, width) * 3).to(dtype), torch.rand(width).to(dtype) + 0.5
    assert close(c_ops.rms_norm(x, weight, 1e-6), TORCH.rms_norm(x, weight, 1e-6), dtype)
    gate_up = (torch.randn(rows, 2 * width) * 20).to(dtype)
    assert close(c_ops.silu_mul(gate_up), TORCH.silu_mul(gate_up), dtype)


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 2, 64), (4, 4, 16), (12, 4, 32), (9, 3, 80)])
def test_attention_of_ragged_rows(c_ops, dtype, has_norm, heads, kv_heads, dim):
    torch.manual_seed(heads)
    rows, slots, max_tokens = 5, 7, 90
    shape = AttentionShape(heads, kv_heads, dim, dim**-0.5, 1e-6)
    qkv = torch.randn(rows, (heads + 2 * kv_heads) * dim).to(dtype)
    norm = (torch.rand(heads + kv_heads, dim) + 0.5).to(dtype) if has_norm else None
    angle = torch.randn(rows, dim // 2)
    rotary = Rotary(
        torch.cat([angle.cos(), angle.cos()], -1).to(dtype), torch.cat([-angle.sin(), angle.sin()], -1).to(dtype)
    )
    kv = torch.randn(slots, 2, kv_heads, max_tokens, dim).to(dtype)
    contexts = np.array([0, 89, 17, 1, 40], np.int64)
    results = []
    for ops in (c_ops, TORCH):
        layer, out = kv.clone(), torch.empty(rows, heads * dim, dtype=dtype)
        ops.attend(qkv.clone(), norm, rotary, layer, DecodeRows(contexts, layer[None]), shape, out)
        results.append((out, layer))
    (ours, our_kv), (theirs, their_kv) = results
    assert close(ours, theirs, dtype)
    assert close(our_kv, their_kv, dtype)
    written = torch.zeros(slots, max_tokens, dtype=torch.bool)
    written[range(rows), contexts] = True
    assert torch.equal(our_kv.transpose(1, 3)[~written], kv.transpose(1, 3)[~written]), (
        "only the new tokens are written"
    )


@needs_kernels
def test_a_row_does_not_see_what_lies_beyond_its_context(c_ops):
    shape = AttentionShape(2, 1, 16, 0.25, 1e-6)
    qkv, ones = torch.randn(1, 4 * 16), torch.ones(1, 16)
    rotary = Rotary(ones, torch.zeros(1, 16))
    outs = []
    for beyond in (0.0, float("nan")):
        kv = torch.full((1, 2, 1, 32, 16), beyond)
        kv[:, :, :, :5] = 0.5
        out = torch.empty(1, 32)
        c_ops.attend(qkv.clone(), None, rotary, kv, DecodeRows(np.array([5]), kv[None]), shape, out)
        outs.append(out)
    assert torch.equal(*outs)
    assert outs[0].isfinite().all()


@needs_kernels
def test_wrong_arguments_are_an_error_not_a_crash():
    with pytest.raises(TypeError):
        kernels.rms_norm(1, 2)
    with pytest.raises(TypeError):
        kernels.silu_mul("x", 0, 0, 0, 0)
