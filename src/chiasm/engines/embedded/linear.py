"""Matrix products with weights that never change.

torch's own fp32 product is poor for 2 to 16 rows on CPU; oneDNN with weights reordered once is 1.5 to 2.7 times as fast.
The reordering ops are not public, so they are tried once at start and left out where they fail or disagree.
"""

from collections.abc import Callable
from functools import cache, partial

import torch
from torch.nn import functional

Linear = Callable[[torch.Tensor], torch.Tensor]
"""[rows, in_features] -> [rows, out_features]."""


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None, *, pack: bool) -> Linear:
    """A function for `x @ weight.T + bias`; keeps its own copy of the weight when packed."""
    if pack and weight.device.type == "cpu" and packing_works(weight.dtype):
        return partial(_packed, _reorder(weight), bias)
    return partial(_plain, weight, bias)


@cache
def packing_works(dtype: torch.dtype) -> bool:
    """Whether this build of torch has the ops and they give the same result."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(48, 32, generator=generator).to(dtype)
    x = torch.randn(3, 32, generator=generator).to(dtype)
    try:
        packed = _packed(_reorder(weight), None, x)
    except (AttributeError, RuntimeError):
        return False
    return torch.allclose(
        packed.float(), functional.linear(x, weight).float(), atol=1e-1 if dtype != torch.float32 else 1e-4
    )


def _reorder(weight: torch.Tensor) -> torch.Tensor:
    reordered: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)  # noqa: SLF001 - see above
    return reordered


def _packed(weight: torch.Tensor, bias: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")  # noqa: SLF001 - see above
    return product


def _plain(weight: torch.Tensor, bias: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, weight, bias)
