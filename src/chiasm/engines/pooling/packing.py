"""Matrix products whose rows do not depend on how many there are.

torch's own product picks another kernel for one to three rows, with other rounding. oneDNN's with reordered weights
gives a row the same bits in any company, and is as fast or faster: a text comes to the same alone and in a batch.
"""

import torch
from torch import nn

from chiasm.engines.embedded.decoder.torch_linear import make_linear, packing_works


class _Packed(nn.Module):
    """A linear layer with its weight in oneDNN's order."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        bias = None if layer.bias is None else layer.bias.detach()
        self._product = make_linear(layer.weight.detach(), bias, pack=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See `torch.nn.Linear`."""
        return self._product(x)


def packed(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Replace every linear layer inside `module`, or `module` itself; leaves all where packing does not work."""
    if not packing_works(dtype):
        return module
    if isinstance(module, nn.Linear):
        return _Packed(module)
    for name, child in list(module.named_children()):
        setattr(module, name, packed(child, dtype))
    return module
