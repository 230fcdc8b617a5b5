"""Attention with torch's operations over KV slots: rows that continue sequences at once, prompt chunks one by one."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from chiasm.engines.embedded.decoder.base import AttentionShape
from chiasm.engines.embedded.decoder.rotary import Rotary
from chiasm.scheduling.scheduler import Chunk


class DecodeRows:
    """The rows of a step that continue sequences, one token each in slots 0..n-1, as every layer needs them.

    Attributes:
        count: Rows n.
        longest: Most tokens any row attends to, the new one included.
        write_rows: [n x 2 x kv_heads] row numbers of the new keys and values, with a layer's KV seen as
            [all rows, head_dim].
        mask: Additive mask [n, 1, 1, longest]; None when all rows attend equally far.
    """

    def __init__(self, contexts: NDArray[np.int64], kv: torch.Tensor) -> None:
        """`contexts` [n]: tokens each slot holds already. `kv` is `SlotKV.data`."""
        _, _, two, heads, max_tokens, _ = kv.shape
        self.count = len(contexts)
        self.longest = int(contexts.max()) + 1
        held = torch.from_numpy(contexts)[:, None]
        lanes = torch.arange(self.count * two * heads).view(self.count, -1) * max_tokens
        self.write_rows = (lanes + held).reshape(-1)
        self.mask: torch.Tensor | None = None
        if int(contexts.min()) + 1 < self.longest:
            hidden = torch.arange(self.longest)[None] > held
            mask = torch.zeros(hidden.shape, dtype=kv.dtype).masked_fill_(hidden, -torch.inf)
            self.mask = mask[:, None, None]


def attend_rows(
    qkv: torch.Tensor, kv_layer: torch.Tensor, rows: DecodeRows, shape: AttentionShape, out: torch.Tensor
) -> None:
    """Write the new keys and values, and attend.

    Args:
        qkv: [rows, heads + 2 x kv_heads, head_dim], rotated.
        kv_layer: [slots, 2, kv_heads, max_tokens, head_dim].
        rows: Which tokens.
        shape: Sizes.
        out: [rows, heads x head_dim], filled.
    """
    n, dim = rows.count, shape.head_dim
    kv_layer.view(-1, dim).index_copy_(0, rows.write_rows, qkv[:, shape.heads :].reshape(-1, dim))
    held = kv_layer[:n, :, :, : rows.longest]
    # the query heads that share a key head stand in for a query length: no repeated keys, no gather
    grouped = qkv[:, : shape.heads].reshape(n, shape.kv_heads, shape.heads // shape.kv_heads, dim)
    attended = functional.scaled_dot_product_attention(
        grouped, held[:, 0], held[:, 1], attn_mask=rows.mask, scale=shape.scale
    )
    out.copy_(attended.reshape(n, -1))


def attend_chunks(
    qkv: torch.Tensor, kv_layer: torch.Tensor, chunks: Sequence[Chunk], shape: AttentionShape, out: torch.Tensor
) -> None:
    """As `attend_rows`, for the tokens of `chunks` one after the other."""
    start = 0
    for chunk in chunks:
        tokens = slice(start, start + chunk.num_tokens)
        out[tokens] = _attend_chunk(qkv[tokens], kv_layer[chunk.slot], chunk, shape)
        start = tokens.stop


def rotate(qk: torch.Tensor, norm: torch.Tensor | None, rotary: Rotary, eps: float) -> None:
    """Normalise (if the model does) and rotate queries and keys [tokens, heads, head_dim] in place.

    `norm` is [heads, head_dim].
    """
    half = qk.shape[-1] // 2
    scaled = qk if norm is None else functional.rms_norm(qk, qk.shape[-1:], None, eps) * norm
    swapped = torch.cat((scaled[..., half:], scaled[..., :half]), -1)
    qk.copy_(torch.addcmul(scaled * rotary.cos[:, None], swapped, rotary.sin[:, None]))


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
