"""The rows of a step that continue sequences: one token each, in KV slots 0..n-1."""

from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray


class DecodeRows:
    """Where this step's tokens of decoding sequences are written and how far each attends.

    Attributes:
        count: Rows n; row i uses slot i.
        contexts: [n] tokens each slot holds already, which is also where the new one goes.
        longest: Most tokens any row attends to, the new one included.
    """

    def __init__(self, contexts: NDArray[np.int64], kv: torch.Tensor) -> None:
        """`kv` is `SlotKV.data`."""
        self.count = len(contexts)
        self.contexts = contexts
        self.longest = int(contexts.max()) + 1
        self._kv_shape = kv.shape
        self._dtype = kv.dtype

    @cached_property
    def write_rows(self) -> torch.Tensor:
        """[n x 2 x kv_heads] row numbers of the new keys and values, with a layer's KV seen as [all rows, head_dim]."""
        _, _, two, heads, max_tokens, _ = self._kv_shape
        lanes = torch.arange(self.count * two * heads).view(self.count, -1) * max_tokens
        return (lanes + torch.from_numpy(self.contexts)[:, None]).reshape(-1)

    @cached_property
    def mask(self) -> torch.Tensor | None:
        """Additive mask [n, 1, 1, longest]; None when all rows attend equally far."""
        if int(self.contexts.min()) + 1 == self.longest:
            return None
        hidden = torch.arange(self.longest)[None] > torch.from_numpy(self.contexts)[:, None]
        return torch.zeros(hidden.shape, dtype=self._dtype).masked_fill_(hidden, -torch.inf)[:, None, None]
