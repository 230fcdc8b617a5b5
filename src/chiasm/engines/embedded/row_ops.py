"""What happens between the matrix products of a layer, for few rows: with torch, or in one call each in C.

Both do the same; `tests/numeric/test_row_ops.py` compares them. C wins where dispatch dominates, torch where its
threads do, and only torch is there when the package was installed without a compiler.
"""

import importlib
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol

import torch
from torch.nn import functional

from chiasm.engines.embedded.decode_rows import DecodeRows
from chiasm.engines.embedded.rotary import Rotary, rotate


def _load_kernels() -> ModuleType | None:
    try:
        return importlib.import_module("chiasm.engines.embedded._kernels")
    except ImportError:  # no compiler at install time
        return None


kernels = _load_kernels()
MAX_C_ROWS = 32
_MAX_C_ATTENTION_BYTES = 4 * 2**20


@dataclass(frozen=True)
class AttentionShape:
    """Sizes and constants of a layer's attention. `eps` belongs to the query/key norm."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    eps: float


class RowOps(Protocol):
    """Arguments are contiguous; results are new tensors unless said otherwise."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """[rows, width] scaled to unit mean square, times `weight` [width]."""
        ...

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[rows, 2 x width] -> silu(first half) x second half."""
        ...

    def attend(
        self,
        qkv: torch.Tensor,
        qk_norm: torch.Tensor | None,
        rotary: Rotary,
        kv_layer: torch.Tensor,
        rows: DecodeRows,
        shape: AttentionShape,
        out: torch.Tensor,
    ) -> None:
        """Normalise and rotate queries and keys, write the new keys and values, attend.

        Args:
            qkv: [rows, (heads + 2 x kv_heads) x head_dim]; may be overwritten.
            qk_norm: [heads + kv_heads, head_dim], for models that have it.
            rotary: Of these rows.
            kv_layer: [slots, 2, kv_heads, max_tokens, head_dim]; row i's slot i is written.
            rows: Which tokens.
            shape: Sizes.
            out: [rows, heads x head_dim], filled.
        """
        ...


class TorchRowOps:
    """`RowOps` with torch's operations, in as many threads as it has."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See `RowOps`."""
        return functional.rms_norm(x, weight.shape, weight, eps)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `RowOps`."""
        gate, up = gate_up.chunk(2, -1)
        return functional.silu(gate).mul_(up)

    def attend(
        self,
        qkv: torch.Tensor,
        qk_norm: torch.Tensor | None,
        rotary: Rotary,
        kv_layer: torch.Tensor,
        rows: DecodeRows,
        shape: AttentionShape,
        out: torch.Tensor,
    ) -> None:
        """See `RowOps`."""
        n, dim = rows.count, shape.head_dim
        y = qkv.view(n, -1, dim)
        rotate(y[:, : shape.heads + shape.kv_heads], qk_norm, rotary, shape.eps)
        kv_layer.view(-1, dim).index_copy_(0, rows.write_rows, y[:, shape.heads :].reshape(-1, dim))
        held = kv_layer[:n, :, :, : rows.longest]
        # the query heads that share a key head stand in for a query length: no repeated keys, no gather
        grouped = y[:, : shape.heads].reshape(n, shape.kv_heads, shape.heads // shape.kv_heads, dim)
        attended = functional.scaled_dot_product_attention(
            grouped, held[:, 0], held[:, 1], attn_mask=rows.mask, scale=shape.scale
        )
        out.copy_(attended.reshape(n, -1))


class CRowOps(TorchRowOps):
    """`RowOps` in one thread of C; attention over much memory stays with torch's threads."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See `RowOps`."""
        out = torch.empty_like(x)
        self._module.rms_norm(x.data_ptr(), weight.data_ptr(), out.data_ptr(), *x.shape, x.dtype is torch.bfloat16, eps)
        return out

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `RowOps`."""
        rows, width = gate_up.shape
        out = gate_up.new_empty(rows, width // 2)
        self._module.silu_mul(gate_up.data_ptr(), out.data_ptr(), rows, width // 2, gate_up.dtype is torch.bfloat16)
        return out

    def attend(
        self,
        qkv: torch.Tensor,
        qk_norm: torch.Tensor | None,
        rotary: Rotary,
        kv_layer: torch.Tensor,
        rows: DecodeRows,
        shape: AttentionShape,
        out: torch.Tensor,
    ) -> None:
        """See `RowOps`."""
        held_bytes = int(rows.contexts.sum()) * 2 * shape.kv_heads * shape.head_dim * qkv.element_size()
        if held_bytes > _MAX_C_ATTENTION_BYTES and torch.get_num_threads() > 1:
            super().attend(qkv, qk_norm, rotary, kv_layer, rows, shape, out)
            return
        self._module.attend(
            qkv.data_ptr(),
            0 if qk_norm is None else qk_norm.data_ptr(),
            rotary.cos.data_ptr(),
            rotary.sin.data_ptr(),
            kv_layer.data_ptr(),
            rows.contexts.ctypes.data,
            out.data_ptr(),
            rows.count,
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            kv_layer.shape[3],
            qkv.dtype is torch.bfloat16,
            shape.scale,
            shape.eps,
        )


def row_ops(dtype: torch.dtype) -> RowOps:
    """The faster implementation that is there, for weights and activations of `dtype`."""
    if kernels is not None and dtype in (torch.float32, torch.bfloat16):
        return CRowOps(kernels)
    return TorchRowOps()
