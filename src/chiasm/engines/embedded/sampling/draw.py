"""Filters and draws over whole batches of rows.

Every filter works on a row's values alone and keeps ties at its edge, so that the kept set does not depend on how a
sort orders equal values.
"""

import hashlib
from dataclasses import dataclass

import torch

# Enough of a row for the nucleus of most distributions; a flatter one is sorted whole.
_NUCLEUS_CANDIDATES = 1024


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
        params: One per row; temperatures above 0.
        uniforms: One per row, from `uniform`.

    Returns:
        Token ids [rows] int64.
    """
    # Relative to the maximum, so that no temperature overflows.
    scores = (logits - logits.amax(-1, keepdim=True)) / _column([p.temperature for p in params], logits)
    if any(p.top_k for p in params):
        scores = _keep_top_k(scores, [p.top_k for p in params])
    if any(p.top_p < 1 for p in params):
        scores = _keep_top_p(scores, [p.top_p for p in params])
    if any(p.min_p for p in params):
        # Relative to the maximum, whose score is 0: p / p_max = exp(score).
        scores = scores.masked_fill(scores < _column([p.min_p for p in params], logits).log(), -torch.inf)
    # In float64 the sum's rounding cannot move a token's edge, however a device orders the additions.
    cumulative = scores.double().exp_().cumsum(-1)
    targets = _column(uniforms, cumulative) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, targets, right=True).squeeze(-1)


def _column(values: list[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device).unsqueeze(-1)


def _keep_top_k(scores: torch.Tensor, counts: list[int]) -> torch.Tensor:
    vocab_size = scores.shape[-1]
    ranks = [min(count or vocab_size, vocab_size) for count in counts]
    best = scores.topk(max((r for r in ranks if r < vocab_size), default=1), dim=-1).values
    edges = best.gather(-1, torch.tensor([[min(r, best.shape[-1]) - 1] for r in ranks], device=scores.device))
    is_off = torch.tensor([[r == vocab_size] for r in ranks], device=scores.device)
    return scores.masked_fill((scores < edges) & ~is_off, -torch.inf)


def _keep_top_p(scores: torch.Tensor, shares: list[float]) -> torch.Tensor:
    """Keep a token when those above it hold less than the share."""
    masses = _column(shares, scores).double() * scores.double().exp().sum(-1, keepdim=True)
    best = scores.topk(min(_NUCLEUS_CANDIDATES, scores.shape[-1]), dim=-1).values
    cumulative = best.double().exp().cumsum(-1)
    is_on = torch.tensor([[share < 1] for share in shares], device=scores.device)
    if bool(((cumulative[:, -1:] < masses) & is_on).any()):
        best = scores.sort(dim=-1, descending=True).values
        cumulative = best.double().exp().cumsum(-1)
    above = cumulative - best.double().exp()
    num_kept = (above < masses).sum(-1, keepdim=True)
    edges = best.gather(-1, num_kept.clamp(min=1) - 1)
    return scores.masked_fill((scores < edges) & is_on, -torch.inf)
