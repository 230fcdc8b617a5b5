"""Matrix products with weights that never change.

torch's own fp32 product is poor for 2 to 16 rows on CPU; oneDNN with weights reordered once is 1.5 to 2.7 times as
fast, and adds the residual on the way. Its ops are not public in torch, so they are tried once at start and left out
where they fail or disagree.
"""

from functools import cache
from typing import TYPE_CHECKING, Protocol

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable


class Linear(Protocol):
    """`x @ weight.T + bias (+ residual)`: [rows, in_features] -> [rows, out_features]."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The product."""
        ...

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """The product plus `residual` [rows, out_features], which is left as it is."""
        ...


class PlainLinear:
    """The framework's product."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See `Linear`."""
        return functional.linear(x, self._weight, self._bias)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """See `Linear`."""
        return functional.linear(x, self._weight, self._bias).add_(residual)


class PackedLinear:
    """oneDNN's product with its own copy of the weight, in the order it likes."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        ops = torch.ops.mkldnn
        self._weight: torch.Tensor = ops._reorder_linear_weight(weight.contiguous(), None)  # noqa: SLF001 - see above
        self._bias = bias
        self._product: Callable[..., torch.Tensor] = ops._linear_pointwise.default  # noqa: SLF001
        self._product_add: Callable[..., torch.Tensor] = ops._linear_pointwise.binary  # noqa: SLF001

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See `Linear`."""
        return self._product(x, self._weight, self._bias, "none", [], "")

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """See `Linear`."""
        return self._product_add(x, residual, self._weight, self._bias, "add")


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None, *, pack: bool) -> Linear:
    """The faster of the two that works here; a packed one may drop `weight` afterwards."""
    if pack and weight.device.type == "cpu" and packing_works(weight.dtype):
        return PackedLinear(weight, bias)
    return PlainLinear(weight, bias)


@cache
def packing_works(dtype: torch.dtype) -> bool:
    """Whether this build of torch has the ops and they give the same result."""
    generator = torch.Generator().manual_seed(0)
    weight, x, residual = (torch.randn(rows, 32, generator=generator).to(dtype) for rows in (32, 3, 3))
    try:
        packed = PackedLinear(weight, None).add(x, residual)
    except (AttributeError, RuntimeError):
        return False
    plain = PlainLinear(weight, None).add(x, residual)
    return torch.allclose(packed.float(), plain.float(), atol=1e-4 if dtype == torch.float32 else 2e-1)
