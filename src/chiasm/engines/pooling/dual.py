"""Dual encoders: a text tower for packed rows, and an image tower for batches of pictures of one size."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from chiasm.engines.pooling.packing import packed
from chiasm.media.prepare.base import PreparedImage


@dataclass(frozen=True)
class Picture:
    """One prepared picture. Those of equal identity are equal. `num_tokens` is what it costs: rows of the tower."""

    identity: str
    num_tokens: int
    prepared: PreparedImage = field(compare=False, repr=False)


class ImageTower:
    """Pictures to rows of the space that they share with texts. `dtype` is that of the weights."""

    def __init__(self, tower: nn.Module, projection: nn.Module, dtype: torch.dtype) -> None:
        self._tower = packed(tower, dtype)
        self._projection = packed(projection.float(), torch.float32)
        self._dtype = dtype

    def rows(self, pictures: Sequence[Picture]) -> torch.Tensor:
        """[pictures, width], float32."""
        pixels = [torch.from_numpy(one.prepared.pixel_values()) for one in pictures]
        out: Any = self._tower(pixel_values=torch.stack(pixels).to(self._dtype))
        rows: torch.Tensor = self._projection(out.pooler_output.float())
        return rows


class PackedEmbeddings(nn.Module):
    """CLIP's text embeddings without its check of the row's length: a packed row is longer than any of its texts."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self._tokens = inner.token_embedding
        self._positions = inner.position_embedding

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """[1, tokens] each -> [1, tokens, hidden_size]."""
        out: torch.Tensor = self._tokens(input_ids) + self._positions(position_ids)
        return out
