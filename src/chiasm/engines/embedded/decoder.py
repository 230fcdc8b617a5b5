"""The text decoder of every family: a Llama-shaped stack over packed tokens, with fused and reordered weights.

Options that families need: biases, query/key norm, M-RoPE (through the rotary tables), deepstack rows. Weights come
from the Hugging Face text model, which may be dropped afterwards.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from chiasm.engines.embedded.attention import attend_chunks
from chiasm.engines.embedded.decode_rows import DecodeRows
from chiasm.engines.embedded.families.base import LoadedModel
from chiasm.engines.embedded.linear import Linear, make_linear
from chiasm.engines.embedded.rotary import Rotary
from chiasm.engines.embedded.row_ops import MAX_C_ROWS, AttentionShape, RowOps, TorchRowOps, row_ops
from chiasm.scheduling.scheduler import Chunk


@dataclass(frozen=True)
class DeepstackRows:
    """Vision features added after the first layers: `levels` [levels, rows, hidden] to tokens `rows`."""

    rows: torch.Tensor
    levels: torch.Tensor


@dataclass(frozen=True)
class _Layer:
    input_norm: torch.Tensor
    qkv: Linear
    qk_norm: torch.Tensor | None  # [heads + kv_heads, head_dim]
    out: Linear
    post_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class Decoder:
    """Computes packed tokens. Not thread-safe; call under `torch.inference_mode()`."""

    def __init__(self, model: LoadedModel, frequency_axes: NDArray[np.int64] | None, *, pack: bool) -> None:
        text: Any = model.text
        config = text.config
        self.num_layers: int = config.num_hidden_layers
        self.hidden_size: int = config.hidden_size
        self.shape = AttentionShape(
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            scale=float(text.layers[0].self_attn.scaling),
            eps=float(text.norm.variance_epsilon),
        )
        self.embeddings: torch.Tensor = text.embed_tokens.weight.detach()
        self._norm: torch.Tensor = text.norm.weight.detach()
        self._layers = [self._fuse(layer, pack=pack) for layer in text.layers]
        self._head = make_linear(model.lm_head.detach(), None, pack=pack)
        self._frequencies: torch.Tensor = text.rotary_emb.inv_freq.float()
        self._rotary_scale = float(text.rotary_emb.attention_scaling)
        self._axes = None if frequency_axes is None else torch.from_numpy(frequency_axes)
        self._torch_ops: RowOps = TorchRowOps()
        self._row_ops = row_ops(self.embeddings.dtype)

    def rotary(self, positions: NDArray[np.int64]) -> Rotary:
        """Tables for positions [axes, tokens]."""
        at = torch.from_numpy(positions).float()[..., None] * self._frequencies
        if self._axes is not None and at.shape[0] > 1:
            at = at.gather(0, self._axes.expand(1, at.shape[1], -1))
        cos, sin = at[0].cos() * self._rotary_scale, at[0].sin() * self._rotary_scale
        like = self.embeddings
        return Rotary(torch.cat((cos, cos), -1).to(like), torch.cat((-sin, sin), -1).to(like))

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[tokens] -> [tokens, hidden]; the caller may overwrite rows."""
        return functional.embedding(token_ids, self.embeddings)

    def forward(
        self,
        x: torch.Tensor,
        rotary: Rotary,
        kv: torch.Tensor,
        rows: DecodeRows | None,
        chunks: Sequence[Chunk],
        deepstack: DeepstackRows | None,
    ) -> torch.Tensor:
        """All layers over packed tokens [tokens, hidden]: first `rows`, then `chunks`.

        Keys and values go to `kv` (`SlotKV.data`).
        """
        ops, eps = self._ops(len(x)), self.shape.eps
        for number, layer in enumerate(self._layers):
            qkv = layer.qkv(ops.rms_norm(x, layer.input_norm, eps))
            x = layer.out.add(self._attend(qkv, layer.qk_norm, rotary, kv[number], rows, chunks), x)
            gate_up = layer.gate_up(ops.rms_norm(x, layer.post_norm, eps))
            x = layer.down.add(ops.silu_mul(gate_up), x)
            if deepstack is not None and number < len(deepstack.levels):
                x[deepstack.rows] += deepstack.levels[number]
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] of the last layer -> [rows, vocab]."""
        return self._head(self._ops(len(hidden)).rms_norm(hidden, self._norm, self.shape.eps))

    def _ops(self, num_rows: int) -> RowOps:
        return self._row_ops if num_rows <= MAX_C_ROWS else self._torch_ops

    def _attend(
        self,
        qkv: torch.Tensor,
        qk_norm: torch.Tensor | None,
        rotary: Rotary,
        kv_layer: torch.Tensor,
        rows: DecodeRows | None,
        chunks: Sequence[Chunk],
    ) -> torch.Tensor:
        shape = self.shape
        out = qkv.new_empty(len(qkv), shape.heads * shape.head_dim)
        n = 0 if rows is None else rows.count
        if rows is not None:
            self._row_ops.attend(qkv[:n], qk_norm, rotary[:n], kv_layer, rows, shape, out[:n])
        if chunks:
            attend_chunks(qkv[n:], qk_norm, rotary[n:], kv_layer, chunks, shape, out[n:])
        return out

    def _fuse(self, layer: Any, *, pack: bool) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        qk_norm = None
        if getattr(attention, "q_norm", None) is not None:
            query, key = attention.q_norm.weight.detach(), attention.k_norm.weight.detach()
            qk_norm = torch.stack([query] * self.shape.heads + [key] * self.shape.kv_heads)
        return _Layer(
            input_norm=layer.input_layernorm.weight.detach(),
            qkv=_fused([attention.q_proj, attention.k_proj, attention.v_proj], pack=pack),
            qk_norm=qk_norm,
            out=_fused([attention.o_proj], pack=pack),
            post_norm=layer.post_attention_layernorm.weight.detach(),
            gate_up=_fused([mlp.gate_proj, mlp.up_proj], pack=pack),
            down=_fused([mlp.down_proj], pack=pack),
        )


def _fused(modules: Sequence[Any], *, pack: bool) -> Linear:
    weight = torch.cat([module.weight.detach() for module in modules])
    has_bias = modules[0].bias is not None
    bias = torch.cat([module.bias.detach() for module in modules]) if has_bias else None
    return make_linear(weight, bias, pack=pack)
