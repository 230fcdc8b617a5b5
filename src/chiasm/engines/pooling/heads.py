"""What a model computes from a pooled row: heads of transformers' classifiers, sentence-transformers' dense layers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from chiasm.engines.pooling.packing import packed
from chiasm.errors import EngineStartError
from chiasm.pooling.model_files import Activation, PoolingModel

Head = Callable[[torch.Tensor], torch.Tensor]
"""[rows, hidden_size] -> [rows, width or labels], float32."""

_ACTIVATIONS: dict[Activation, type[nn.Module]] = {
    "identity": nn.Identity,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
}


def projection_head(directory: Path, model: PoolingModel) -> tuple[Head, int | None]:
    """All dense layers that follow pooling, and the width they lead to; None without one.

    Raises:
        EngineStartError: Their weights cannot be read.
    """
    layers: list[nn.Module] = []
    width: int | None = None
    for projection in model.projections:
        layer = _dense(directory / projection.folder)
        layers += [layer, _ACTIVATIONS[projection.activation]()]
        width = layer.out_features
    return _in_float32(nn.Sequential(*layers)), width


def _dense(folder: Path) -> nn.Linear:
    try:
        weights = load_file(folder / "model.safetensors")
    except (OSError, SafetensorError) as error:
        raise EngineStartError(
            f"Cannot read the dense layer in {folder.name}: {error}", hint="The folder needs a model.safetensors"
        ) from error
    weight, bias = weights.get("linear.weight"), weights.get("linear.bias")
    if weight is None:
        raise EngineStartError(f"The dense layer in {folder.name} has no linear.weight")
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=torch.float32)
    with torch.no_grad():
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)
    return layer


def classification_head(loaded: Any, backbone_pooler: nn.Module | None) -> Head:
    """The head of a transformers classifier, without its backbone, for rows instead of padded batches."""
    if hasattr(loaded, "score"):  # decoders: one product
        return _in_float32(loaded.score)
    if hasattr(loaded, "head"):  # ModernBERT: dense, activation and norm, then the product
        return _in_float32(nn.Sequential(loaded.head, loaded.classifier))
    if backbone_pooler is not None:  # BERT: dense and tanh belong to the backbone, and take the first of a row
        return _in_float32(nn.Sequential(_FirstOfRow(backbone_pooler), loaded.classifier))
    if hasattr(loaded.classifier, "out_proj"):  # RoBERTa's takes the first of a row by itself
        return _in_float32(_FirstOfRow(loaded.classifier))
    return _in_float32(loaded.classifier)


def answer_head(output: torch.Tensor, yes: int, no: int) -> Head:
    """One logit out of a language model's output projection [vocabulary, hidden_size].

    Its sigmoid is the probability of yes among yes and no: softmax over two logits is the sigmoid of their difference.
    """
    weight = output[yes].float() - output[no].float()
    return lambda rows: (rows * weight).sum(-1, keepdim=True)  # a sum per row, whatever the number of rows


class _FirstOfRow(nn.Module):
    """Gives a module that takes the first token of each padded row rows of one token."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self._inner = inner

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self._inner(rows[:, None])
        return out


def _in_float32(module: nn.Module) -> Head:
    return packed(module.float().eval().requires_grad_(requires_grad=False), torch.float32)
