"""Several texts end to end."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from chiasm.engines.pooling.attention import Runs, runs_of

_STEP = 32
_SMALL_STEP = 8
"""Rows are filled up to a multiple: oneDNN keeps memory for every number of rows that it has seen."""


@dataclass(frozen=True)
class Tokens:
    """One input, tokenized. `type_ids` tell the texts of a pair apart, for models that want to know."""

    ids: tuple[int, ...]
    type_ids: tuple[int, ...] | None = None

    @property
    def num_tokens(self) -> int:
        """Special ones included."""
        return len(self.ids)


@dataclass(frozen=True)
class PackedBatch:
    """Inputs end to end in one row.

    Attributes:
        ids: [tokens], with a filler behind the inputs.
        positions: [tokens], from 0 in every input.
        type_ids: [tokens], or None where no input has any.
        ends: Cumulative lengths without the leading 0: input i is `ends[i - 1]` to `ends[i]`.
        lengths: Of the inputs.
        runs: Neighbours of the same length.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    type_ids: torch.Tensor | None
    ends: tuple[int, ...]
    lengths: list[int]
    runs: Runs


def pack(inputs: Sequence[Tokens]) -> PackedBatch:
    """Lay inputs end to end in the order given; equal lengths next to each other are computed together."""
    lengths = [len(one.ids) for one in inputs]
    assert all(lengths), "an input without tokens"
    filler = -sum(lengths) % (_SMALL_STEP if sum(lengths) <= _STEP else _STEP)
    type_ids = None
    if any(one.type_ids for one in inputs):
        rows = (one.type_ids or (0,) * len(one.ids) for one in inputs)
        type_ids = torch.tensor([number for row in rows for number in row] + [0] * filler)
    return PackedBatch(
        ids=torch.tensor([number for one in inputs for number in one.ids] + [0] * filler),
        positions=torch.cat([torch.arange(length) for length in (*lengths, filler)]),
        type_ids=type_ids,
        ends=tuple(accumulate(lengths)),
        lengths=lengths,
        runs=(*runs_of(lengths), (1, filler)) if filler else runs_of(lengths),
    )
