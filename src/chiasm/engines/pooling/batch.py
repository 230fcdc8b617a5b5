"""Several texts end to end."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

import torch

from chiasm.engines.pooling.attention import Run, Runs

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
    """Inputs end to end in one row; behind them starts that several have in common, and a filler.

    Attributes:
        ids: [tokens].
        positions: [tokens], from 0 in every input, or from the end of its start where that lies apart.
        type_ids: [tokens], or None where no input has any.
        ends: Cumulative lengths without the leading 0: input i is `ends[i - 1]` to `ends[i]`.
        lengths: Of the inputs, without starts that lie apart.
        runs: Neighbours of the same length and start.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    type_ids: torch.Tensor | None
    ends: tuple[int, ...]
    lengths: list[int]
    runs: Runs


def pack(inputs: Sequence[Tokens], shared: Sequence[int] | None = None) -> PackedBatch:
    """Lay inputs end to end in the order given; equal lengths next to each other are computed together.

    `shared[i]` is how many of input i's first tokens others of the batch may have as well, for causal models: such a
    start is laid down once, however many inputs have it.
    """
    shared = shared or [0] * len(inputs)
    starts = list(dict.fromkeys(one.ids[:count] for one, count in zip(inputs, shared, strict=True) if count))
    lengths = [len(one.ids) - count for one, count in zip(inputs, shared, strict=True)]
    assert all(length > 0 for length in lengths), "an input without tokens of its own"
    num_tokens = sum(lengths) + sum(map(len, starts))
    filler = -num_tokens % (_SMALL_STEP if num_tokens <= _STEP else _STEP)
    own = [number for one, count in zip(inputs, shared, strict=True) for number in one.ids[count:]]
    ranges = [(count, count + length) for count, length in zip(shared, lengths, strict=True)]
    ranges += [(0, length) for length in (*map(len, starts), filler)]
    return PackedBatch(
        ids=torch.tensor([*own, *(number for start in starts for number in start), *[0] * filler]),
        positions=torch.cat([torch.arange(*one) for one in ranges]),
        type_ids=_type_ids(inputs, filler) if not starts else None,
        ends=tuple(accumulate(lengths)),
        lengths=lengths,
        runs=_runs(inputs, shared, lengths, starts, filler),
    )


def _type_ids(inputs: Sequence[Tokens], filler: int) -> torch.Tensor | None:
    if not any(one.type_ids for one in inputs):
        return None
    rows = (one.type_ids or (0,) * len(one.ids) for one in inputs)
    return torch.tensor([number for row in rows for number in row] + [0] * filler)


def _runs(
    inputs: Sequence[Tokens], shared: Sequence[int], lengths: list[int], starts: list[tuple[int, ...]], filler: int
) -> Runs:
    ends = list(accumulate(map(len, starts), initial=sum(lengths)))
    places = {start: slice(ends[number], ends[number + 1]) for number, start in enumerate(starts)}
    kinds = ((length, one.ids[:count]) for one, count, length in zip(inputs, shared, lengths, strict=True))
    runs = [
        Run(sum(1 for _ in group), length, places[start] if start else None)
        for (length, start), group in groupby(kinds)
    ]
    runs += [Run(1, len(start)) for start in starts]
    return (*runs, Run(1, filler)) if filler else tuple(runs)
