"""Rotary positions of tokens, ready to be multiplied with queries and keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional


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


def rotate(qk: torch.Tensor, norm: torch.Tensor | None, rotary: Rotary, eps: float) -> None:
    """Normalise (if the model does) and rotate queries and keys [tokens, heads, head_dim] in place.

    `norm` is [heads, head_dim].
    """
    half = qk.shape[-1] // 2
    scaled = qk if norm is None else functional.rms_norm(qk, qk.shape[-1:], None, eps) * norm
    swapped = torch.cat((scaled[..., half:], scaled[..., :half]), -1)
    qk.copy_(torch.addcmul(scaled * rotary.cos[:, None], swapped, rotary.sin[:, None]))
