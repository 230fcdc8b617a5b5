"""Attention over texts that lie end to end, as an attention function of transformers.

Neither padding nor a block mask: each run of equally long texts is one call over views of the packed row. A mask over
the whole row costs eleven times as much at 20 texts of 20 to 200 tokens, padding twice as much (docs/pooling.md).

Texts that begin alike may lie in the row without their common start, which lies there once: they look at its keys and
values, which every layer computes in the same pass.
"""

from typing import Any, NamedTuple

import torch
from torch.nn import functional
from transformers import AttentionInterface

IMPLEMENTATION = "chiasm_packed"
"""Name to give a model as `attn_implementation`; its forward then takes `runs`."""


class Run(NamedTuple):
    """Texts of one length that lie side by side: how many, and how many tokens each has there.

    `prefix` is where in the row the start lies that all of them have in common and that is not among their tokens.
    """

    num_texts: int
    num_tokens: int
    prefix: slice | None = None


Runs = tuple[Run, ...]
"""In the order in which they lie in the row."""


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
    sizes = [run.num_texts * run.num_tokens for run in runs]
    parts = []
    for run, q, k, v in zip(runs, *(torch.split(x[0], sizes, 1) for x in (query, key, value)), strict=True):
        if run.prefix is None:
            parts.append(_of_run(q, k, v, run, scaling, sliding_window, causal=causal))
        else:
            assert causal, "in a text that is read both ways its start depends on the rest"
            start = key[0, :, run.prefix], value[0, :, run.prefix]
            parts.append(_of_continuations(q, k, v, start, run, scaling, sliding_window))
    return (parts[0] if len(parts) == 1 else torch.cat(parts))[None], None


def _of_run(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    run: Run,
    scaling: float | None,
    window: int | None,
    *,
    causal: bool,
) -> torch.Tensor:
    length = run.num_tokens
    q, k, v = (_by_text(x, run) for x in (query, key, value))
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


def _of_continuations(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    start: tuple[torch.Tensor, torch.Tensor],
    run: Run,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """As `_of_run` for causal texts behind a common start, whose keys and values are [heads, tokens, head_dim]."""
    q, k, v = (_by_text(x, run) for x in (query, key, value))
    k, v = (
        torch.cat([x[None].expand(run.num_texts, -1, -1, -1), own], 2) for x, own in zip(start, (k, v), strict=True)
    )
    num_before = k.shape[2] - run.num_tokens
    distance = torch.arange(num_before, k.shape[2])[:, None] - torch.arange(k.shape[2])[None]
    mask = distance >= 0 if window is None else (distance >= 0) & (distance < window)
    out = functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, scale=scaling, enable_gqa=q.shape[1] != k.shape[1]
    )
    return out.transpose(1, 2).flatten(0, 1)


def _by_text(rows: torch.Tensor, run: Run) -> torch.Tensor:
    """[heads, texts x tokens, head_dim] -> [texts, heads, tokens, head_dim]."""
    return rows.view(-1, run.num_texts, run.num_tokens, rows.shape[-1]).transpose(0, 1)


def _window_mask(length: int, window: int, *, causal: bool) -> torch.Tensor:
    """Who sees whom: distances below `window`, backwards only where causal."""
    at = torch.arange(length)
    distance = at[:, None] - at[None]
    return (distance >= 0) & (distance < window) if causal else distance.abs() < window


AttentionInterface.register(IMPLEMENTATION, _attend)
