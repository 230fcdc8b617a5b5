"""Dual encoders: a text tower for packed rows, and an image tower for batches of pictures of one size."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers.modeling_outputs import BaseModelOutput

from chiasm.engines.pooling.attention import Runs
from chiasm.engines.pooling.batch import Tokens
from chiasm.engines.pooling.native_vision import NativeLayers
from chiasm.engines.pooling.packing import packed
from chiasm.media.prepare.base import PreparedImage


@dataclass(frozen=True)
class Picture:
    """One prepared picture. Those of equal identity are equal. `num_tokens` is what it costs: rows of the tower."""

    identity: str
    num_tokens: int
    prepared: PreparedImage = field(compare=False, repr=False)


@dataclass(frozen=True)
class Feature:
    """What a tower has made of one picture: `rows` [rows, width]. Those of equal identity are equal."""

    identity: str
    num_tokens: int
    rows: NDArray[np.float32] = field(compare=False, repr=False)


@dataclass(frozen=True)
class RankedPicture:
    """A text and the picture that it looks at."""

    tokens: Tokens
    feature: Feature

    @property
    def num_tokens(self) -> int:
        """Of both."""
        return self.tokens.num_tokens + self.feature.num_tokens


class ImageTower:
    """Pictures to rows. `dtype` is that of the weights.

    A tower that pools makes of a picture one row in the space that it shares with texts; one that does not, a row per
    patch. `shape` is [rows, width] of one picture.
    """

    def __init__(
        self, tower: nn.Module, projection: nn.Module, dtype: torch.dtype, shape: tuple[int, int], *, pools: bool = True
    ) -> None:
        self._tower = packed(tower, dtype)
        self._projection = packed(projection.float(), torch.float32)
        self._dtype = dtype
        self._pools = pools
        self.shape = shape
        self._layers = [one for one in self._tower.modules() if isinstance(one, NativeLayers)]

    @property
    def native_bytes(self) -> int:
        """What weights take that are no tensors."""
        return sum(one.num_bytes for one in self._layers)

    def close(self) -> None:
        """Give back threads and memory of the C code. Harmless when repeated."""
        for one in self._layers:
            one.close()

    def rows(self, pictures: Sequence[Picture], *, is_alone: bool = False) -> torch.Tensor:
        """[pictures, rows, width], float32. `is_alone` leaves the C code one thread, to the same bits."""
        for one in self._layers:
            one.is_alone = is_alone
        pixels = [torch.from_numpy(one.prepared.pixel_values()) for one in pictures]
        out: Any = self._tower(pixel_values=torch.stack(pixels).to(self._dtype))
        rows: torch.Tensor = self._projection(
            (out.pooler_output[:, None] if self._pools else out.last_hidden_state).float()
        )
        return rows


class FilledTexts(nn.Module):
    """SigLIP's text tower for packed rows: all of its texts are filled up to one length, and make a plain batch."""

    def __init__(self, tower: nn.Module) -> None:
        super().__init__()
        self._tower = tower

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, runs: Runs) -> BaseModelOutput:
        """[1, tokens], of which a filler at the end is left out."""
        del position_ids  # from 0 in every text, as the tower has them by itself
        count, length, _ = runs[0]
        out: Any = self._tower(input_ids=input_ids[0, : count * length].view(count, length))
        return BaseModelOutput(last_hidden_state=out.last_hidden_state.flatten(0, 1)[None])


class PackedEmbeddings(nn.Module):
    """CLIP's text embeddings without their check of the row's length: a packed row is longer than any of its texts."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self._tokens = inner.token_embedding
        self._positions = inner.position_embedding

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """[1, tokens] each -> [1, tokens, hidden_size]."""
        out: torch.Tensor = self._tokens(input_ids) + self._positions(position_ids)
        return out
