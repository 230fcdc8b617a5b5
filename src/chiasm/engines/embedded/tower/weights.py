"""Sizes and weights of the Hugging Face vision models of the Qwen-VL families, named alike."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from chiasm.engines.embedded.decoder.weights import Projection, stacked

_ACTIVATIONS = {"gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu", "quick_gelu": "gelu_sigmoid"}
MODEL_TYPES = ("qwen2_vl_vision", "qwen2_5_vl_vision", "qwen3_vl_vision")


@dataclass(frozen=True)
class TowerShape:
    """What the arithmetic depends on. `activation` is None where it is none of those known."""

    num_layers: int
    hidden_size: int
    heads: int
    head_dim: int
    intermediate_size: int
    merge_size: int
    out_hidden_size: int
    num_levels: int
    position_side: int
    is_rms: bool
    activation: str | None
    eps: float
    scale: float


@dataclass(frozen=True)
class Norm:
    """`bias` is None for root-mean-square norms."""

    weight: torch.Tensor
    bias: torch.Tensor | None


@dataclass(frozen=True)
class TowerLayer:
    """One layer; `up` is gate and up, stacked, in models that have a gate. `is_windowed` layers attend in windows."""

    norm1: Norm
    norm2: Norm
    qkv: Projection
    out: Projection
    up: Projection
    down: Projection
    is_windowed: bool


@dataclass(frozen=True)
class Merger:
    """Squares of patches of the layer `after` become embeddings; `is_norm_of_merged` when normalised as a whole."""

    norm: Norm
    up: Projection
    down: Projection
    after: int
    is_norm_of_merged: bool


def tower_shape(vision: Any) -> TowerShape:
    """Sizes of a vision model of `MODEL_TYPES`."""
    block, config = vision.blocks[0], vision.config
    hidden_size = int(block.attn.proj.out_features)
    up, down = _mlp(block.mlp)
    has_gate = len(up.weight) > down.weight.shape[1]
    norm = block.norm1
    is_rms = hasattr(norm, "variance_epsilon")
    positions = getattr(vision, "pos_embed", None)
    return TowerShape(
        num_layers=len(vision.blocks),
        hidden_size=hidden_size,
        heads=int(block.attn.num_heads),
        head_dim=hidden_size // int(block.attn.num_heads),
        intermediate_size=down.weight.shape[1],
        merge_size=int(vision.spatial_merge_size),
        out_hidden_size=len(_merger(vision.merger, 0).down.weight),
        num_levels=len(getattr(vision, "deepstack_merger_list", ())),
        position_side=0 if positions is None else int(vision.num_grid_per_side),
        is_rms=is_rms,
        activation=_gate_activation(config) if has_gate else _ACTIVATIONS.get(config.hidden_act),
        eps=float(norm.variance_epsilon if is_rms else norm.eps),
        scale=float(block.attn.scaling),
    )


def tower_layers(vision: Any) -> Iterator[TowerLayer]:
    """Layers in order, stacked one at a time, so that the copies do not add up."""
    whole = getattr(vision, "fullatt_block_indexes", None)
    for number, block in enumerate(vision.blocks):
        up, down = _mlp(block.mlp)
        yield TowerLayer(
            norm1=_norm(block.norm1),
            norm2=_norm(block.norm2),
            qkv=stacked(block.attn.qkv),
            out=stacked(block.attn.proj),
            up=up,
            down=down,
            is_windowed=whole is not None and number not in whole,
        )


def tower_mergers(vision: Any) -> Iterator[Merger]:
    """The last layer's first, then those of the deepstack levels, in the order of their layers."""
    yield _merger(vision.merger, len(vision.blocks) - 1)
    mergers = getattr(vision, "deepstack_merger_list", ())
    yield from (_merger(mergers[i], after) for after, i in _levels(vision))


def _levels(vision: Any) -> list[tuple[int, int]]:
    indexes = getattr(vision, "deepstack_visual_indexes", ())
    return sorted((int(after), number) for number, after in enumerate(indexes))


def _merger(module: Any, after: int) -> Merger:
    if hasattr(module, "linear_fc1"):
        norm, up, down = module.norm, module.linear_fc1, module.linear_fc2
    else:
        norm, up, down = module.ln_q, module.mlp[0], module.mlp[2]
    return Merger(_norm(norm), stacked(up), stacked(down), after, getattr(module, "use_postshuffle_norm", False))


def _mlp(mlp: Any) -> tuple[Projection, Projection]:
    if hasattr(mlp, "gate_proj"):
        return stacked(mlp.gate_proj, mlp.up_proj), stacked(mlp.down_proj)
    if hasattr(mlp, "linear_fc1"):
        return stacked(mlp.linear_fc1), stacked(mlp.linear_fc2)
    return stacked(mlp.fc1), stacked(mlp.fc2)


def _gate_activation(config: Any) -> str | None:
    return "swiglu" if config.hidden_act == "silu" else None


def _norm(norm: Any) -> Norm:
    bias = getattr(norm, "bias", None)
    return Norm(norm.weight.detach(), None if bias is None else bias.detach())
