"""From the hidden states of a packed batch to what each input's head gets."""

from collections.abc import Callable, Mapping

import torch

from chiasm.engines.pooling.batch import PackedBatch
from chiasm.pooling.model_files import PoolingKind

Pooler = Callable[[torch.Tensor, PackedBatch], torch.Tensor]
"""[tokens, hidden_size] -> [inputs, hidden_size], in float32."""


def pooled_places(kind: PoolingKind, batch: PackedBatch) -> list[int] | None:
    """Where in the row each input's one pooled token lies; None for kinds that pool more than one."""
    if kind == "cls":
        return [0, *batch.ends[:-1]]
    return [end - 1 for end in batch.ends] if kind == "last" else None


def _one(kind: PoolingKind) -> Pooler:
    return lambda hidden, batch: hidden[pooled_places(kind, batch)].float()


def _mean(hidden: torch.Tensor, batch: PackedBatch) -> torch.Tensor:
    """Summed input by input: what lies beside one in the row does not change its rounding."""
    parts = torch.split(hidden.float(), batch.lengths)
    return torch.stack([part.mean(0) for part in parts])


_POOLERS: Mapping[PoolingKind, Pooler] = {"cls": _one("cls"), "last": _one("last"), "mean": _mean}


def pooler(kind: PoolingKind) -> Pooler:
    """The pooler that leaves one row per input; `all` and `step` leave several and are views (`token_rows`)."""
    return _POOLERS[kind]


def token_rows(hidden: torch.Tensor, batch: PackedBatch, step_token_id: int | None) -> list[torch.Tensor]:
    """Rows of each input, in float32: all of them, or with a step token those where it stands."""
    rows = list(torch.split(hidden.float(), batch.lengths))
    if step_token_id is None:
        return rows
    return [
        part[ids == step_token_id]
        for part, ids in zip(rows, torch.split(batch.ids[: batch.ends[-1]], batch.lengths), strict=True)
    ]
