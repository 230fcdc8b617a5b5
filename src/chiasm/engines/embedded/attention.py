"""Attention of prompt chunks: many tokens of one sequence over what its slot holds."""

from collections.abc import Sequence

import torch
from torch.nn import functional

from chiasm.engines.embedded.rotary import Rotary, rotate
from chiasm.engines.embedded.row_ops import AttentionShape
from chiasm.scheduling.scheduler import Chunk


def attend_chunks(
    qkv: torch.Tensor,
    qk_norm: torch.Tensor | None,
    rotary: Rotary,
    kv_layer: torch.Tensor,
    chunks: Sequence[Chunk],
    shape: AttentionShape,
    out: torch.Tensor,
) -> None:
    """As `RowOps.attend`, for the tokens of `chunks` one after the other."""
    y = qkv.view(len(qkv), -1, shape.head_dim)
    rotate(y[:, : shape.heads + shape.kv_heads], qk_norm, rotary, shape.eps)
    start = 0
    for chunk in chunks:
        tokens = slice(start, start + chunk.num_tokens)
        out[tokens] = _attend_chunk(y[tokens], kv_layer[chunk.slot], chunk, shape)
        start = tokens.stop


def _attend_chunk(y: torch.Tensor, kv_slot: torch.Tensor, chunk: Chunk, shape: AttentionShape) -> torch.Tensor:
    tokens, end = chunk.num_tokens, chunk.start + chunk.num_tokens
    kv_new = y[:, shape.heads :].view(tokens, 2, shape.kv_heads, shape.head_dim)
    kv_slot[:, :, chunk.start : end] = kv_new.permute(1, 2, 0, 3)
    # is_causal aligns top left, which is right only when nothing precedes the chunk
    mask = torch.ones(tokens, end, dtype=torch.bool).tril(chunk.start) if chunk.start else None
    attended = functional.scaled_dot_product_attention(
        y[:, : shape.heads].transpose(0, 1)[None],
        kv_slot[0, :, :end][None],
        kv_slot[1, :, :end][None],
        attn_mask=mask,
        is_causal=mask is None,
        scale=shape.scale,
        enable_gqa=True,
    )
    return attended[0].transpose(0, 1).reshape(tokens, -1)
