"""Rotary positions of tokens, ready to be multiplied with queries and keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True)
class Rotary:
    """x * cos + swapped_halves(x) * sin, both [tokens, head_dim]; sin carries the sign of the rotation."""

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


class RotaryTables:
    """Makes `Rotary` objects for a Hugging Face text model. Thread-safe."""

    def __init__(self, text: Any, frequency_axes: NDArray[np.int64] | None, dtype: torch.dtype) -> None:
        """`frequency_axes` is `Family.frequency_axes`."""
        self._frequencies: torch.Tensor = text.rotary_emb.inv_freq.float()
        self._scale = float(text.rotary_emb.attention_scaling)
        self._axes = None if frequency_axes is None else torch.from_numpy(frequency_axes)
        self._dtype = dtype

    def at(self, positions: NDArray[np.int64]) -> Rotary:
        """Tables for positions [axes, tokens]."""
        angles = torch.from_numpy(positions).float()[..., None] * self._frequencies
        if self._axes is not None and angles.shape[0] > 1:
            angles = angles.gather(0, self._axes.expand(1, angles.shape[1], -1))
        cos, sin = angles[0].cos() * self._scale, angles[0].sin() * self._scale
        return Rotary(torch.cat((cos, cos), -1).to(self._dtype), torch.cat((-sin, sin), -1).to(self._dtype))
