"""What the engine asks of a text decoder. `native_decoder` and `torch_decoder` are the two that exist."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from chiasm.engines.embedded.decoder.low_rank import AdaptedRows, AdapterLayers, ArrangedAdapter
from chiasm.engines.embedded.decoder.rotary import Rotary
from chiasm.scheduling.scheduler import Chunk


@dataclass(frozen=True)
class AttentionShape:
    """Sizes and constants of a layer's attention. `eps` belongs to all norms."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    eps: float


@dataclass(frozen=True)
class DeepstackRows:
    """Vision features added after the first layers: `levels` [levels, rows, hidden] to tokens `rows`."""

    rows: torch.Tensor
    levels: torch.Tensor


class Decoder(Protocol):
    """Computes packed tokens. Not thread-safe but for `rotary`; call under `torch.inference_mode()`.

    Attributes:
        name: Which implementation, for people.
        num_layers: Layers.
        hidden_size: Width of hidden states.
        shape: Of attention.
        dtype: Of hidden states, keys and values.
        weight_bytes: What its weights take.
    """

    name: str
    num_layers: int
    hidden_size: int
    shape: AttentionShape
    dtype: torch.dtype
    weight_bytes: int

    def rotary(self, positions: NDArray[np.int64]) -> Rotary:
        """Tables for positions [axes, tokens]."""
        ...

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[tokens] -> [tokens, hidden]; the caller may overwrite rows."""
        ...

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
        """All layers over packed tokens; each attends to what its slot holds before it, and to itself.

        Returns the last layer's hidden states of all tokens, or of those that `wanted` names.

        Args:
            x: [tokens, hidden]: first one token each for slots 0, 1, ..., then those of `chunks`. May be overwritten.
            rotary: Of all tokens.
            kv: `SlotKV.data`; the tokens' keys and values are written to it.
            contexts: For each of the single tokens, how many its slot holds already.
            chunks: In slots of their own.
            deepstack: For models that have it.
            wanted: int64, ascending; the others' keys and values are computed, and no more of the last layer.
            adapted: Rows with adapters, ascending; the others' results are as without them, bit for bit.
        """
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] of the last layer -> [rows, vocab]."""
        ...

    def arrange(self, layers: AdapterLayers) -> ArrangedAdapter:
        """Copy an adapter's weights, whose sizes fit, for `forward`. Any thread may call. Raises `MemoryError`."""
        ...

    def close(self) -> None:
        """Give back threads and memory; nothing but `rotary` may be called afterwards. Harmless when repeated."""
        ...
