"""Muon for the matrices of the blocks, AdamW for everything else."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def orthogonalise(matrix: Tensor, steps: int = 5) -> Tensor:
    """The nearest semi-orthogonal matrix, roughly, by Newton-Schulz iteration."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T.contiguous() if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum whose update is orthogonalised, in fp32."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float, momentum: float = 0.95, decay: float = 0.01) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """One update."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                update = orthogonalise(self._momentum(p, group["momentum"]))
                scale = group["lr"] * max(1.0, p.shape[0] / p.shape[1]) ** 0.5
                p.mul_(1 - group["lr"] * group["decay"]).add_(update, alpha=-scale)

    def _momentum(self, p: nn.Parameter, momentum: float) -> Tensor:
        assert p.grad is not None
        state = self.state[p]
        if "buffer" not in state:
            state["buffer"] = torch.zeros_like(p)
        state["buffer"].lerp_(p.grad, 1 - momentum)
        return p.grad.lerp(state["buffer"], momentum)


def optimizers(
    model: nn.Module, heads: Iterable[nn.Parameter], muon: float, adam: float
) -> list[torch.optim.Optimizer]:
    """The two optimizers over the model and the auxiliary heads."""
    matrices, rest = [], []
    for name, p in model.named_parameters():
        in_block = "blocks." in name or ".layers." in name
        (matrices if p.ndim == 2 and in_block else rest).append(p)
    groups = [{"params": rest, "lr": adam}, {"params": list(heads), "lr": 1e-3}]
    other = torch.optim.AdamW(groups, betas=(0.9, 0.98), weight_decay=0.0)
    return [Muon(matrices, muon), other]
