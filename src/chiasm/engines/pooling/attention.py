"""Attention over texts that lie end to end, as an attention function of transformers.

Neither padding nor a block mask: each run of equally long texts is one call over views of the packed row. A mask over
the whole row costs eleven times as much at 20 texts of 20 to 200 tokens, padding twice as much (docs/pooling.md).
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch.nn import functional
from transformers import AttentionInterface

IMPLEMENTATION = "chiasm_packed"
"""Name to give a model as `attn_implementation`; its forward then takes `runs`."""

Runs = tuple[tuple[int, int], ...]
"""(number of texts, tokens of each), in the order in which they lie in the row."""


def runs_of(lengths: Sequence[int]) -> Runs:
    """Group neighbours of the same length."""
    return tuple((sum(1 for _ in group), length) for length, group in groupby(lengths))


def _attend(  # noqa: PLR0913 - transformers decides what an attention function takes
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    runs: Runs,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """[1, heads, tokens, head_dim] each -> [1, tokens, heads, head_dim]; `attention_mask` is never made for us."""
    assert attention_mask is None, "packed texts need no mask"
    causal = bool(module.is_causal if is_causal is None else is_causal)
    sizes = [count * length for count, length in runs]
    parts = [
        _of_run(q, k, v, run, scaling, sliding_window, causal=causal)
        for run, q, k, v in zip(runs, *(torch.split(x[0], sizes, 1) for x in (query, key, value)), strict=True)
    ]
    return (parts[0] if len(parts) == 1 else torch.cat(parts))[None], None


def _of_run(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    run: tuple[int, int],
    scaling: float | None,
    window: int | None,
    *,
    causal: bool,
) -> torch.Tensor:
    count, length = run
    q, k, v = (x.view(-1, count, length, x.shape[-1]).transpose(0, 1) for x in (query, key, value))
    mask = _window_mask(length, window, causal=causal) if window is not None and length > window else None
    out = functional.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask,
        is_causal=causal and mask is None,
        scale=scaling,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return out.transpose(1, 2).flatten(0, 1)


def _window_mask(length: int, window: int, *, causal: bool) -> torch.Tensor:
    """Who sees whom: distances below `window`, backwards only where causal."""
    at = torch.arange(length)
    distance = at[:, None] - at[None]
    return (distance >= 0) & (distance < window) if causal else distance.abs() < window


AttentionInterface.register(IMPLEMENTATION, _attend)
