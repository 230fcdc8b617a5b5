"""The decoder with torch's operations: for where the C one is not there, and what that one is compared with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from chiasm.engines.embedded.decoder.base import DeepstackRows
from chiasm.engines.embedded.decoder.low_rank import AdaptedRows, AdapterLayers, TorchAdapter, TorchAdditions
from chiasm.engines.embedded.decoder.rotary import Rotary, RotaryTables
from chiasm.engines.embedded.decoder.torch_attention import DecodeRows, attend_chunks, attend_rows, rotate
from chiasm.engines.embedded.decoder.torch_linear import Linear, make_linear
from chiasm.engines.embedded.decoder.weights import LayerWeights, attention_shape, layer_weights
from chiasm.engines.embedded.families.base import LoadedModel
from chiasm.engines.embedded.memory import module_bytes
from chiasm.scheduling.scheduler import Chunk


@dataclass(frozen=True)
class _Layer:
    input_norm: torch.Tensor
    qkv: Linear
    qk_norm: torch.Tensor | None  # [heads + kv_heads, head_dim]
    out: Linear
    post_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class TorchDecoder:
    """See `Decoder`. Computes in the weights' dtype."""

    def __init__(self, model: LoadedModel, frequency_axes: NDArray[np.int64] | None, *, pack: bool) -> None:
        text: Any = model.text
        self.name = "torch"
        self.num_layers: int = text.config.num_hidden_layers
        self.hidden_size: int = text.config.hidden_size
        self.shape = attention_shape(text)
        self._embeddings: torch.Tensor = text.embed_tokens.weight.detach()
        self.dtype = self._embeddings.dtype
        self._tables = RotaryTables(text, frequency_axes, self.dtype)
        self._norm: torch.Tensor = text.norm.weight.detach()
        self._layers = [self._arrange(layer, pack=pack) for layer in layer_weights(text)]
        self._head = make_linear(model.lm_head.detach(), None, pack=pack)
        is_tied = model.lm_head.data_ptr() == self._embeddings.data_ptr() and not pack
        self.weight_bytes = module_bytes(text) + (0 if is_tied else model.lm_head.nbytes)

    def rotary(self, positions: NDArray[np.int64]) -> Rotary:
        """See `Decoder`."""
        return self._tables.at(positions)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """See `Decoder`."""
        return functional.embedding(token_ids, self._embeddings)

    def forward(  # noqa: PLR0913 - all that a step is
        self,
        x: torch.Tensor,
        rotary: Rotary,
        kv: torch.Tensor,
        contexts: NDArray[np.int64],
        chunks: Sequence[Chunk],
        deepstack: DeepstackRows | None,
        wanted: torch.Tensor | None = None,
        adapted: Sequence[AdaptedRows] = (),
    ) -> torch.Tensor:
        """See `Decoder`."""
        rows, additions = DecodeRows(contexts, kv) if len(contexts) else None, TorchAdditions(adapted)
        for number, layer in enumerate(self._layers):
            normed = self._normed(x, layer.input_norm)
            qkv = layer.qkv(normed)
            additions.add(number, "qkv", normed, qkv)
            attended = self._attend(qkv, layer.qk_norm, rotary, kv[number], rows, chunks)
            x = layer.out.add(attended, x)
            additions.add(number, "out", attended, x)
            x = self._feed_forward(number, layer, x, additions)
            if deepstack is not None and number < len(deepstack.levels):
                x[deepstack.rows] += deepstack.levels[number]
        return x if wanted is None else x[wanted]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `Decoder`."""
        return self._head(self._normed(hidden, self._norm))

    def arrange(self, layers: AdapterLayers) -> TorchAdapter:
        """See `Decoder`."""
        return TorchAdapter(layers, self.dtype)

    def close(self) -> None:
        """See `Decoder`."""

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, weight.shape, weight, self.shape.eps)

    def _feed_forward(self, number: int, layer: _Layer, x: torch.Tensor, additions: TorchAdditions) -> torch.Tensor:
        normed = self._normed(x, layer.post_norm)
        both = layer.gate_up(normed)
        additions.add(number, "gate_up", normed, both)
        gate, up = both.chunk(2, -1)
        active = functional.silu(gate).mul_(up)
        x = layer.down.add(active, x)
        additions.add(number, "down", active, x)
        return x

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
        heads = qkv.view(len(qkv), -1, shape.head_dim)
        rotate(heads[:, : shape.heads + shape.kv_heads], qk_norm, rotary, shape.eps)
        out = qkv.new_empty(len(qkv), shape.heads * shape.head_dim)
        n = 0 if rows is None else rows.count
        if rows is not None:
            attend_rows(heads[:n], kv_layer, rows, shape, out[:n])
        attend_chunks(heads[n:], kv_layer, chunks, shape, out[n:])
        return out

    def _arrange(self, layer: LayerWeights, *, pack: bool) -> _Layer:
        qkv, out, gate_up, down = (
            make_linear(part.weight, part.bias, pack=pack) for part in (layer.qkv, layer.out, layer.gate_up, layer.down)
        )
        qk_norm = None
        if layer.q_norm is not None and layer.k_norm is not None:
            qk_norm = torch.stack([layer.q_norm] * self.shape.heads + [layer.k_norm] * self.shape.kv_heads)
        return _Layer(layer.input_norm, qkv, qk_norm, out, layer.post_norm, gate_up, down)
