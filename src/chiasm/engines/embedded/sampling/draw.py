"""Filters and draws over whole batches of rows.

Every filter works on a row's values alone and keeps ties at its edge, so that the kept set does not depend on how a
sort orders equal values.
"""

import hashlib
from dataclasses import dataclass

import torch
from torch.nn import functional

# Enough of a row for the nucleus of most distributions; a flatter one is sorted whole.
_NUCLEUS_CANDIDATES = 1024
_BLOCK = 512


@dataclass(frozen=True)
class DrawParams:
    """How one row is drawn. `top_k` 0, `top_p` 1 and `min_p` 0 are off."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float


def uniform(seed: int, choice: int, step: int) -> float:
    """The random number of one step, in [0, 1 - 2^-52].

    Computed from its arguments alone: a sequence continues after a hand-over or a preemption without any generator
    state, and draws the same on every device.
    """
    digest = hashlib.blake2b(f"{seed}:{choice}:{step}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 12) * 2.0**-52


def draw(logits: torch.Tensor, params: list[DrawParams], uniforms: list[float]) -> torch.Tensor:
    """Draw one token per row: temperature, then top-k, top-p and min-p as Hugging Face warpers define them.

    Args:
        logits: [rows, vocab_size] float32, with a finite maximum in each row; -inf entries are never drawn.
            Overwritten: at a large vocabulary the time goes into touching fresh memory.
        params: One per row; temperatures above 0.
        uniforms: One per row, from `uniform`.

    Returns:
        Token ids [rows] int64.
    """
    # Relative to the maximum, so that no temperature overflows.
    scores = logits.sub_(logits.amax(-1, keepdim=True)).div_(_column([p.temperature for p in params], logits))
    if any(p.top_k for p in params):
        _keep_top_k(scores, [p.top_k for p in params])
    if any(p.top_p < 1 for p in params):
        _keep_top_p(scores, [p.top_p for p in params])
    if any(p.min_p for p in params):
        # The largest score is 0, so that p / p_max = exp(score).
        scores.masked_fill_(scores < _column([p.min_p for p in params], scores).log(), -torch.inf)
    return _invert(scores.exp_(), _column(uniforms, scores, torch.float64))


def _invert(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """The token at which the cumulated weights pass the random number: first its block, then its place in there.

    Sums are float64, so that the order in which a device adds cannot move a token's edge.
    """
    blocks = functional.pad(weights, (0, -weights.shape[-1] % _BLOCK)).view(len(weights), -1, _BLOCK)
    edges = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    targets = uniforms * edges[:, -1:]
    block = torch.searchsorted(edges, targets, right=True)
    before = functional.pad(edges, (1, 0)).gather(-1, block)
    rows = torch.arange(len(weights), device=weights.device)
    inside = blocks[rows, block.squeeze(-1)].double().cumsum(-1)
    # Rounding may leave a target just beyond its block's sum; the block's last possible token is then meant.
    last = (inside < inside[:, -1:]).sum(-1, keepdim=True)
    place = torch.searchsorted(inside, targets - before, right=True).minimum(last)
    return (block * _BLOCK + place).squeeze(-1)


def _column(values: list[float], like: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=like.device).unsqueeze(-1)


def _keep_top_k(scores: torch.Tensor, counts: list[int]) -> None:
    vocab_size = scores.shape[-1]
    ranks = [count if 0 < count < vocab_size else vocab_size for count in counts]
    best = scores.topk(max((rank for rank in ranks if rank < vocab_size), default=1), dim=-1).values
    places = torch.tensor([[min(rank, best.shape[-1]) - 1] for rank in ranks], device=scores.device)
    is_off = torch.tensor([[rank == vocab_size] for rank in ranks], device=scores.device)
    scores.masked_fill_(scores < best.gather(-1, places).masked_fill(is_off, -torch.inf), -torch.inf)


def _keep_top_p(scores: torch.Tensor, shares: list[float]) -> None:
    """Keep a token when those above it hold less than the share."""
    is_off = torch.tensor([[share >= 1] for share in shares], device=scores.device)
    masses = _column(shares, scores, torch.float64) * scores.exp().sum(-1, dtype=torch.float64, keepdim=True)
    best = scores.topk(min(_NUCLEUS_CANDIDATES, scores.shape[-1]), dim=-1).values
    weights = best.exp().double()
    if bool(((weights.sum(-1, keepdim=True) < masses) & ~is_off).any()):
        best = scores.sort(dim=-1, descending=True).values
        weights = best.exp().double()
    above = weights.cumsum(-1) - weights
    edges = best.gather(-1, (above < masses).sum(-1, keepdim=True).clamp(min=1) - 1)
    scores.masked_fill_(scores < edges.masked_fill(is_off, -torch.inf), -torch.inf)
