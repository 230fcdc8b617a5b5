"""Matrix products whose rows do not depend on how many there are, and convolutions.

torch's own product picks another kernel for one to three rows, with other rounding. oneDNN's with reordered weights
gives a row the same bits in any company, and is as fast or faster: a text comes to the same alone and in a batch.
"""

from functools import cache

import torch
from torch import nn
from torch.nn import functional
from transformers.activations import GELUActivation

from chiasm.engines.embedded.decoder.torch_linear import make_linear, packing_works

_FILLED_ROWS = 32


class _Packed(nn.Module):
    """A linear layer with its weight in oneDNN's order."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        bias = None if layer.bias is None else layer.bias.detach()
        self._product = make_linear(layer.weight.detach(), bias, pack=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See `torch.nn.Linear`."""
        return self._product(x)


class _PackedGelu(nn.Module):
    """A linear layer and exact GELU in one pass over memory: apart, GELU takes a tenth as long as the product."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        ops = torch.ops.mkldnn
        weight = layer.weight.detach().contiguous()
        self._weight: torch.Tensor = ops._reorder_linear_weight(weight, None)  # noqa: SLF001 - as `make_linear` does
        self._bias = None if layer.bias is None else layer.bias.detach()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features]."""
        product = torch.ops.mkldnn._linear_pointwise.default  # noqa: SLF001
        out: torch.Tensor = product(x, self._weight, self._bias, "gelu", [], "none")
        return out


class _Filled(nn.Module):
    """A packed layer whose rows are filled up: oneDNN keeps memory for every number of rows that it has seen."""

    def __init__(self, product: nn.Module) -> None:
        super().__init__()
        self._product = product

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See `torch.nn.Linear`."""
        rows = x.reshape(-1, x.shape[-1])
        filled = functional.pad(rows, (0, 0, 0, -len(rows) % _FILLED_ROWS))
        out: torch.Tensor = self._product(filled)[: len(rows)]
        return out.view(*x.shape[:-1], -1)


class _PackedConvolution(nn.Module):
    """A convolution with its weight in oneDNN's order, to the same bits.

    torch brings the weight in order anew for every call: for one picture's patches that is three quarters of the time.
    """

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        padding = [0, 0] if layer.padding == "valid" else [*layer.padding]
        self._shape = padding, [*layer.stride], [*layer.dilation], layer.groups
        self._bias = None if layer.bias is None else layer.bias.detach()
        weight, reorder = layer.weight.detach(), torch.ops.mkldnn._reorder_convolution_weight  # noqa: SLF001 - as above
        self._weight: torch.Tensor = reorder(weight, *self._shape, None)
        self.weight = weight.new_empty(0)  # transformers asks for its type

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """See `torch.nn.Conv2d`."""
        product = torch.ops.mkldnn._convolution_pointwise.default  # noqa: SLF001
        out: torch.Tensor = product(pixels, self._weight, self._bias, *self._shape, "none", [], "")
        return out


@cache
def _convolution_packs(dtype: torch.dtype) -> bool:
    """Whether this build of torch has the ops and they give the same result."""
    layer = nn.Conv2d(3, 32, 4, stride=4, device="meta", dtype=dtype).to_empty(device="cpu")
    generator = torch.Generator().manual_seed(0)  # not torch's own, which belongs to whoever draws numbers next
    for parameter in layer.parameters():
        parameter.data.uniform_(-0.5, 0.5, generator=generator)
    pixels = torch.linspace(-1, 1, 3 * 8 * 8).view(1, 3, 8, 8).to(dtype)
    try:
        return torch.equal(_PackedConvolution(layer)(pixels), layer(pixels))
    except (AttributeError, RuntimeError):
        return False


def filled(module: nn.Module) -> nn.Module:
    """Fill up the rows of every packed layer inside `module`, for callers whose numbers of rows are many."""
    for name, child in list(module.named_children()):
        setattr(module, name, _Filled(child) if isinstance(child, _Packed) else filled(child))
    return module


def packed(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Replace every linear layer and convolution inside `module`, or `module` itself.

    Leaves all where packing does not work.
    """
    if not packing_works(dtype):
        return module
    if isinstance(module, nn.Linear):
        return _Packed(module)
    if isinstance(module, nn.Conv2d):
        is_plain = module.padding_mode == "zeros" and module.padding != "same"
        return _PackedConvolution(module) if is_plain and _convolution_packs(dtype) else module
    if isinstance(module, nn.MultiheadAttention):  # takes the weights of its layers by itself
        return module
    if isinstance(getattr(module, "intermediate_act_fn", None), GELUActivation):  # BERT's and RoBERTa's wide layer
        dense = module.dense
        assert isinstance(dense, nn.Linear)
        return _PackedGelu(dense)
    for name, child in list(module.named_children()):
        setattr(module, name, packed(child, dtype))
    return module
