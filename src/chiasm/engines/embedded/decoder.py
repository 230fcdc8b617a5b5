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

from chiasm.engines.embedded.attention import DecodeRows, attend
from chiasm.engines.embedded.families.base import LoadedModel
from chiasm.engines.embedded.linear import Linear, make_linear
from chiasm.scheduling.scheduler import Chunk


@dataclass(frozen=True)
class Rotary:
    """Rotation of tokens: x * cos + swapped_halves(x) * sin, both [tokens, 1, head_dim]; sin carries the sign."""

    cos: torch.Tensor
    sin: torch.Tensor

    def __getitem__(self, index: Any) -> "Rotary":
        return Rotary(self.cos[index], self.sin[index])

    @staticmethod
    def cat(parts: Sequence["Rotary"]) -> "Rotary":
        """Join along tokens."""
        if len(parts) == 1:
            return parts[0]
        return Rotary(torch.cat([part.cos for part in parts]), torch.cat([part.sin for part in parts]))


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
        self.num_heads: int = config.num_attention_heads
        self.num_kv_heads: int = config.num_key_value_heads
        self.hidden_size: int = config.hidden_size
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.embeddings: torch.Tensor = text.embed_tokens.weight.detach()
        self._eps = float(text.norm.variance_epsilon)
        self._scale = float(text.layers[0].self_attn.scaling)
        self._norm: torch.Tensor = text.norm.weight.detach()
        self._layers = [self._fuse(layer, pack=pack) for layer in text.layers]
        self._head = make_linear(model.lm_head.detach(), None, pack=pack)
        self._frequencies: torch.Tensor = text.rotary_emb.inv_freq.float()
        self._rotary_scale = float(text.rotary_emb.attention_scaling)
        self._axes = None if frequency_axes is None else torch.from_numpy(frequency_axes)

    def rotary(self, positions: NDArray[np.int64]) -> Rotary:
        """Tables for positions [axes, tokens]."""
        at = torch.from_numpy(positions).float()[..., None] * self._frequencies.cpu()
        if self._axes is not None and at.shape[0] > 1:
            at = at.gather(0, self._axes.expand(1, at.shape[1], -1))
        cos, sin = at[0].cos() * self._rotary_scale, at[0].sin() * self._rotary_scale
        like = self.embeddings
        return Rotary(torch.cat((cos, cos), -1)[:, None].to(like), torch.cat((-sin, sin), -1)[:, None].to(like))

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
        """All layers over packed tokens [tokens, hidden]; keys and values go to `kv` (`SlotKV.data`)."""
        tokens, hidden = x.shape
        heads, kv_heads, dim, half = self.num_heads, self.num_kv_heads, self.head_dim, self.head_dim // 2
        rotated = heads + kv_heads
        for number, layer in enumerate(self._layers):
            y = layer.qkv(functional.rms_norm(x, (hidden,), layer.input_norm, self._eps)).view(
                tokens, rotated + kv_heads, dim
            )
            qk = y[:, :rotated]
            if layer.qk_norm is not None:
                qk = functional.rms_norm(qk, (dim,), None, self._eps) * layer.qk_norm
            swapped = torch.cat((qk[..., half:], qk[..., :half]), -1)
            y[:, :rotated] = torch.addcmul(qk * rotary.cos, swapped, rotary.sin)
            kv_new = y[:, heads:].view(tokens, 2, kv_heads, dim)
            x = x + layer.out(attend(y[:, :heads], kv_new, kv[number], rows, chunks, self._scale))
            gate, up = layer.gate_up(functional.rms_norm(x, (hidden,), layer.post_norm, self._eps)).chunk(2, -1)
            x = x + layer.down(functional.silu(gate).mul_(up))
            if deepstack is not None and number < len(deepstack.levels):
                x[deepstack.rows] += deepstack.levels[number]
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] of the last layer -> [rows, vocab]."""
        return self._head(functional.rms_norm(hidden, (self.hidden_size,), self._norm, self._eps))

    def _fuse(self, layer: Any, *, pack: bool) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        qk_norm = None
        if getattr(attention, "q_norm", None) is not None:
            query, key = attention.q_norm.weight.detach(), attention.k_norm.weight.detach()
            qk_norm = torch.stack([query] * self.num_heads + [key] * self.num_kv_heads)
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
