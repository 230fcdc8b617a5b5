"""What a family asks of a vision tower over patches. `native_tower` and `torch_tower` are the two that exist."""

from collections.abc import Sequence
from typing import Protocol

import torch

from chiasm.media.prepare.base import PreparedImage


class Tower(Protocol):
    """Encodes pictures. Not thread-safe; call under `torch.inference_mode()`.

    Attributes:
        name: Which implementation, for people.
    """

    name: str

    def encode(self, images: Sequence[PreparedImage]) -> torch.Tensor:
        """[all embeddings, hidden_size x (1 + deepstack levels)] of the pictures in order, in the model's dtype."""
        ...
