"""Keys and values of running sequences, and of prompt prefixes kept for reuse.

Running sequences have a slot each: attention then reads plain views, which a CPU without a paged kernel needs. Prefix
blocks live in a pool of their own and are copied in and out; a copy of 200 tokens costs about as much as one launch.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch

from chiasm.cache.block_hash import BLOCK_TOKENS
from chiasm.scheduling.slots import SlotMove

COMMITTED_BYTES = 512 * 2**20
"""Written at start, of the slots that are taken first: on a first write the system has to provide the pages, and all
that share the step wait for them. Measured by `benchmarks/micro/first_write.py`."""


class SlotKV:
    """`data` is [layers, slots, 2 (key, value), kv_heads, max_tokens, head_dim].

    Slots beyond `COMMITTED_BYTES` get their memory on first write.
    Whatever a slot holds is finite: sequences of different length are attended together, and the values that the mask
    hides are still multiplied by zero.
    """

    def __init__(
        self, *, num_layers: int, num_slots: int, num_kv_heads: int, max_tokens: int, head_dim: int, dtype: torch.dtype
    ) -> None:
        shape = (num_layers, num_slots, 2, num_kv_heads, max_tokens, head_dim)
        self.data = _lazy_zeros(shape, dtype)
        self.data[:, : COMMITTED_BYTES // (self.bytes_per_token * max_tokens)] = 0
        self.max_tokens = max_tokens

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes over all layers."""
        layers, _, two, heads, _, head_dim = self.data.shape
        return int(layers * two * heads * head_dim * self.data.element_size())

    def scrub(self, slot: int, num_tokens: int) -> None:
        """Zero the start of a slot that may not be finite: even a masked NaN spoils what it is summed with."""
        self.data[:, slot, :, :, :num_tokens] = 0

    def read(self, slot: int, num_tokens: int) -> torch.Tensor:
        """A copy of the start of a slot: [layers, 2, kv_heads, num_tokens, head_dim]."""
        return self.data[:, slot, :, :, :num_tokens].contiguous()

    def write(self, slot: int, kv: torch.Tensor, num_tokens: int) -> None:
        """Copy the first `num_tokens` of a tensor as `read` gives it to the start of a slot."""
        self.data[:, slot, :, :, :num_tokens] = kv[:, :, :, :num_tokens]

    def move(self, move: SlotMove, num_source_tokens: int, num_displaced_tokens: int = 0) -> None:
        """Apply a slot move; token counts say how much of each slot is worth copying."""
        source = self.data[:, move.source, :, :, :num_source_tokens]
        if move.displaced is not None:
            target = self.data[:, move.target, :, :, :num_displaced_tokens].clone()
            self.data[:, move.target, :, :, :num_source_tokens].copy_(source)
            self.data[:, move.source, :, :, :num_displaced_tokens].copy_(target)
        else:
            self.data[:, move.target, :, :, :num_source_tokens].copy_(source)


class PrefixBlocks:
    """Content of a `BlockPool`: [blocks, layers, 2, kv_heads, BLOCK_TOKENS, head_dim]."""

    def __init__(self, kv: SlotKV, capacity_bytes: int) -> None:
        layers, _, two, heads, _, head_dim = kv.data.shape
        self.block_bytes = kv.bytes_per_token * BLOCK_TOKENS
        self.num_blocks = capacity_bytes // self.block_bytes
        shape = (self.num_blocks, layers, two, heads, BLOCK_TOKENS, head_dim)
        self._data = torch.empty(shape, dtype=kv.data.dtype, device=kv.data.device)
        self._kv = kv

    def copy_in(self, places: Sequence[int], slot: int) -> int:
        """Write blocks to the start of a slot; returns the number of tokens written."""
        num_tokens = len(places) * BLOCK_TOKENS
        layers, _, two, heads, _, head_dim = self._kv.data.shape
        blocks = self._data[torch.tensor(places)].permute(1, 2, 3, 0, 4, 5)
        self._kv.data[:, slot, :, :, :num_tokens] = blocks.reshape(layers, two, heads, num_tokens, head_dim)
        return num_tokens

    def scrub(self, places: Sequence[int]) -> None:
        """Overwrite blocks that were deleted."""
        self._data[torch.tensor(places, dtype=torch.int64)] = 0

    def copy_out(self, slot: int, filled: Sequence[tuple[int, int]]) -> None:
        """Read (block number in the sequence, place) pairs from a slot."""
        for number, place in filled:
            start = number * BLOCK_TOKENS
            self._data[place].copy_(self._kv.data[:, slot, :, :, start : start + BLOCK_TOKENS])


def _lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Zeros whose pages the system provides on first write (`torch.zeros` would write all of them now)."""
    size_bytes = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(size_bytes, np.uint8)).view(dtype).view(shape)
