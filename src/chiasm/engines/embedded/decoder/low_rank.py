"""Low-rank additions to a decoder's projections, chosen by row, and what of it the torch decoder computes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

Part = Literal["qkv", "out", "gate_up", "down"]
PARTS: tuple[Part, ...] = ("qkv", "out", "gate_up", "down")


@dataclass(frozen=True)
class LowRank:
    """`x @ shrink.T @ expand.T` is added to a result: `shrink` [rank, inputs], `expand` [outputs, rank]."""

    shrink: torch.Tensor
    expand: torch.Tensor


AdapterLayers = Sequence[Mapping[Part, LowRank]]
"""Of each layer, what is added to which of its stacked projections; at least one of all layers has something."""


class ArrangedAdapter(Protocol):
    """An adapter in the form in which the decoder that arranged it computes with it."""

    @property
    def num_bytes(self) -> int:
        """Memory of its weights."""
        ...


@dataclass(frozen=True)
class AdaptedRows:
    """Rows of a step, from `first` on, that are computed with an adapter."""

    adapter: ArrangedAdapter
    first: int
    count: int


def adapted_rows(owners: Iterable[tuple[ArrangedAdapter | None, int]]) -> list[AdaptedRows]:
    """Join neighbours. `owners` has the adapter and the number of rows of each sequence of a step, in order."""
    found: list[AdaptedRows] = []
    row = 0
    for adapter, count in owners:
        if adapter is not None:
            last = found[-1] if found else None
            if last is not None and last.adapter is adapter and last.first + last.count == row:
                found[-1] = AdaptedRows(adapter, last.first, last.count + count)
            else:
                found.append(AdaptedRows(adapter, row, count))
        row += count
    return found


class TorchAdapter:
    """See `ArrangedAdapter`."""

    def __init__(self, layers: AdapterLayers, dtype: torch.dtype) -> None:
        self.layers = [
            {
                part: LowRank(one.shrink.T.to(dtype).contiguous(), one.expand.T.to(dtype).contiguous())
                for part, one in layer.items()
            }
            for layer in layers
        ]
        weights = [one for layer in self.layers for one in layer.values()]
        self.num_bytes = sum(one.shrink.nbytes + one.expand.nbytes for one in weights)


class TorchAdditions:
    """The adapters of one step, each with all its rows, wherever they are."""

    def __init__(self, adapted: Sequence[AdaptedRows]) -> None:
        rows: dict[int, tuple[TorchAdapter, list[int]]] = {}
        for span in adapted:
            assert isinstance(span.adapter, TorchAdapter), "arranged by another decoder"
            _, found = rows.setdefault(id(span.adapter), (span.adapter, []))
            found.extend(range(span.first, span.first + span.count))
        self._groups = [(adapter, torch.tensor(found)) for adapter, found in rows.values()]

    def add(self, layer: int, part: Part, x: torch.Tensor, y: torch.Tensor) -> None:
        """Add to the results `y` [rows, outputs] what follows from `x` [rows, inputs]; other rows stay as they are."""
        for adapter, rows in self._groups:
            weights = adapter.layers[layer].get(part)
            if weights is not None:
                y.index_add_(0, rows, x[rows] @ weights.shrink @ weights.expand)
