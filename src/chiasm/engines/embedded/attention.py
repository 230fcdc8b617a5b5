"""Attention of packed tokens: one row per decoding sequence, then prompt chunks, all in one call per layer."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from chiasm.scheduling.scheduler import Chunk


@dataclass(frozen=True)
class DecodeRows:
    """Decoding sequences in slots 0..n-1.

    Attributes:
        count: n.
        context: Most tokens any of them attends to, this step's included.
        write_rows: [n x 2 x kv_heads] row numbers, with a layer's KV seen as [all rows, head_dim].
        mask: Additive [n, 1, 1, context], None when all contexts are equal.
    """

    count: int
    context: int
    write_rows: torch.Tensor
    mask: torch.Tensor | None


def decode_rows(contexts: torch.Tensor, kv: torch.Tensor) -> DecodeRows:
    """Prepare rows for sequences that hold `contexts` [n] tokens each; `kv` is `SlotKV.data`."""
    _, _, two, heads, max_tokens, _ = kv.shape
    count = len(contexts)
    longest = int(contexts.max()) + 1
    lanes = torch.arange(count * two * heads).view(count, -1) * max_tokens
    write_rows = (lanes + contexts[:, None]).reshape(-1).to(kv.device)
    mask = None
    if int(contexts.min()) + 1 != longest:
        hidden = torch.arange(longest)[None] > contexts[:, None]
        mask = (
            torch.zeros(hidden.shape, dtype=kv.dtype).masked_fill_(hidden, float("-inf"))[:, None, None].to(kv.device)
        )
    return DecodeRows(count, longest, write_rows, mask)


def attend(
    q: torch.Tensor,
    kv_new: torch.Tensor,
    kv_layer: torch.Tensor,
    rows: DecodeRows | None,
    chunks: Sequence[Chunk],
    scale: float,
) -> torch.Tensor:
    """Write this step's keys and values, then attend.

    Args:
        q: [tokens, heads, head_dim], rotated.
        kv_new: [tokens, 2, kv_heads, head_dim], keys rotated.
        kv_layer: One layer of `SlotKV.data`.
        rows: The leading tokens, one per decoding sequence; None when there are none.
        chunks: The rest, in order.
        scale: Factor on the scores.

    Returns:
        [tokens, heads x head_dim].
    """
    outputs = []
    start = 0
    if rows is not None:
        outputs.append(_decode(q[: rows.count], kv_new[: rows.count], kv_layer, rows, scale))
        start = rows.count
    for chunk in chunks:
        end = start + chunk.num_tokens
        outputs.append(_prefill(q[start:end], kv_new[start:end], kv_layer[chunk.slot], chunk.start, scale))
        start = end
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _decode(
    q: torch.Tensor, kv_new: torch.Tensor, kv_layer: torch.Tensor, rows: DecodeRows, scale: float
) -> torch.Tensor:
    n, heads, head_dim = q.shape
    kv_heads = kv_layer.shape[2]
    kv_layer.view(-1, head_dim).index_copy_(0, rows.write_rows, kv_new.reshape(-1, head_dim))
    held = kv_layer[:n, :, :, : rows.context]
    # the query heads that share a key head stand in for a query length: no repeated keys, no gather
    grouped = q.view(n, kv_heads, heads // kv_heads, head_dim)
    out = functional.scaled_dot_product_attention(grouped, held[:, 0], held[:, 1], attn_mask=rows.mask, scale=scale)
    return out.reshape(n, heads * head_dim)


def _prefill(q: torch.Tensor, kv_new: torch.Tensor, kv_slot: torch.Tensor, context: int, scale: float) -> torch.Tensor:
    tokens, heads, head_dim = q.shape
    end = context + tokens
    kv_slot[:, :, context:end] = kv_new.permute(1, 2, 0, 3)
    held = kv_slot[:, :, :end]
    # is_causal aligns top left, which is right only without context
    mask = torch.ones(tokens, end, dtype=torch.bool, device=q.device).tril(context) if context else None
    out = functional.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        held[0][None],
        held[1][None],
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
        enable_gqa=True,
    )
    return out[0].transpose(0, 1).reshape(tokens, heads * head_dim)
