"""The weights of a Hugging Face text model, with projections of the same input stacked."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from chiasm.engines.embedded.decoder.base import AttentionShape


@dataclass(frozen=True)
class Projection:
    """`weight` [outputs, inputs] and `bias` [outputs] of a linear map."""

    weight: torch.Tensor
    bias: torch.Tensor | None


@dataclass(frozen=True)
class LayerWeights:
    """One layer: `qkv` and `gate_up` are stacked; `q_norm` and `k_norm` [head_dim] belong to models that have them."""

    input_norm: torch.Tensor
    qkv: Projection
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    out: Projection
    post_norm: torch.Tensor
    gate_up: Projection
    down: Projection


def attention_shape(text: Any) -> AttentionShape:
    """Sizes from the model's configuration."""
    config = text.config
    return AttentionShape(
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        scale=float(text.layers[0].self_attn.scaling),
        eps=float(text.norm.variance_epsilon),
    )


def layer_weights(text: Any) -> Iterator[LayerWeights]:
    """Layers in order, stacked one at a time, so that the copies do not add up."""
    for layer in text.layers:
        attention, mlp = layer.self_attn, layer.mlp
        has_norms = getattr(attention, "q_norm", None) is not None
        yield LayerWeights(
            input_norm=layer.input_layernorm.weight.detach(),
            qkv=stacked(attention.q_proj, attention.k_proj, attention.v_proj),
            q_norm=attention.q_norm.weight.detach() if has_norms else None,
            k_norm=attention.k_norm.weight.detach() if has_norms else None,
            out=stacked(attention.o_proj),
            post_norm=layer.post_attention_layernorm.weight.detach(),
            gate_up=stacked(mlp.gate_proj, mlp.up_proj),
            down=stacked(mlp.down_proj),
        )


def stacked(*modules: Any) -> Projection:
    """One projection with the outputs of all."""
    weight = torch.cat([module.weight.detach() for module in modules])
    if modules[0].bias is None:
        return Projection(weight, None)
    return Projection(weight, torch.cat([module.bias.detach() for module in modules]))
