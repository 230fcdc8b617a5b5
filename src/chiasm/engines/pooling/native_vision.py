"""The layers of CLIP's and SigLIP's image towers in C: all of them in one call, for a batch of pictures of one size.

What comes before and after them stays with transformers. A picture's numbers do not depend on what else is in the
batch, on the number of threads, or on whether only its first row is wanted, bit for bit.
"""

from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutput

from chiasm.engines.embedded.decoder import native_decoder
from chiasm.engines.embedded.decoder.native_decoder import ALONE_PRODUCTS, address, floats
from chiasm.engines.embedded.decoder.weights import stacked

_ACTIVATIONS = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "quick_gelu": "gelu_sigmoid"}
_MODEL_TYPES = ("clip_vision_model", "siglip_vision_model")


def vision_problem(vision: Any, dtype: torch.dtype) -> str | None:
    """Why `NativeLayers` cannot take the layers of a Hugging Face image tower here; None when it can."""
    config = vision.config
    if native_decoder.library is None:
        return "it was not built when Chiasm was installed"
    if config.model_type not in _MODEL_TYPES:
        return f"it has no code for {config.model_type}"
    if config.hidden_act not in _ACTIVATIONS:
        return f"it has no code for the activation {config.hidden_act}"
    head_dim = config.hidden_size // config.num_attention_heads
    if head_dim % 4 or native_decoder.kernels_for(head_dim) is None:
        return f"it has no code for attention heads of {head_dim}"
    return None if dtype == torch.float32 else f"torch is faster with weights of type {dtype}"


class NativeLayers(nn.Module):
    """Stands where a tower has its `encoder`. Not thread-safe; its threads end with it, or by `close`.

    `is_alone` lets the caller's thread compute by itself from now on.
    """

    def __init__(
        self,
        vision: Any,
        *,
        threads: int,
        only_first: bool = False,
        kernels: str = "",
        alone_products: float = ALONE_PRODUCTS,
    ) -> None:
        """Copy the weights of a tower that `vision_problem` has nothing against. Raises `ValueError`, `MemoryError`.

        Args:
            vision: Its layers are not needed afterwards.
            threads: The caller's included.
            only_first: Whether a head looks at each picture's first row only; the last layer computes no others then.
            kernels: An instruction set, instead of the best.
            alone_products: Batches of fewer multiplications are computed on the caller's thread.
        """
        super().__init__()
        assert native_decoder.library is not None, "callers ask `vision_problem` first"
        config = vision.config
        layers = vision.encoder.layers
        head_dim = config.hidden_size // config.num_attention_heads
        self._native = native_decoder.library.NativeTower(
            kernels,
            threads,
            len(layers),
            config.hidden_size,
            config.num_attention_heads,
            head_dim,
            config.intermediate_size,
            *_NO_PATCHES,
            *_NO_MERGERS,
            0,  # learned positions: they are in what comes in
            False,
            False,
            _ACTIVATIONS[config.hidden_act],
            float(config.layer_norm_eps),
            head_dim**-0.5,
            alone_products,
        )
        self.name = f"native ({self._native.kernels})"
        self.num_bytes = sum(one.numel() * one.itemsize for one in layers.parameters())
        self._quarter = head_dim // 4
        self._only_first = only_first
        self.is_alone = False
        for number, layer in enumerate(layers):
            self._set_layer(number, layer)

    def forward(self, inputs_embeds: torch.Tensor, **_: object) -> BaseModelOutput:
        """[pictures, rows, hidden_size] after all layers, or [pictures, 1, hidden_size] of the first rows."""
        rows = inputs_embeds.contiguous()
        count, length, _width = rows.shape
        grids = torch.tensor([[length, 1]] * count)
        still = torch.ones(length, self._quarter), torch.zeros(length, self._quarter)  # a rotation by nothing
        kept = torch.arange(0, count * length, length) if self._only_first else None
        out = torch.empty_like(rows if kept is None else rows[:, :1])
        self._native.encode(
            count * length,
            rows.data_ptr(),
            grids.data_ptr(),
            count,
            address(None),
            address(None),
            0,
            *map(address, still),
            length,
            out.data_ptr(),
            None,
            True,
            0,
            0.0,
            address(kept),
            0 if kept is None else count,
            self.is_alone,
        )
        return BaseModelOutput(last_hidden_state=out)  # type: ignore[arg-type]  # a name for tensors in transformers

    def close(self) -> None:
        """Give back threads and memory; nothing may be called afterwards. Harmless when repeated."""
        self._native.close()

    def _set_layer(self, number: int, layer: Any) -> None:
        own, mlp = layer.self_attn, layer.mlp
        parts = [stacked(own.q_proj, own.k_proj, own.v_proj), *map(stacked, (own.out_proj, mlp.fc1, mlp.fc2))]
        norms = [tensor for one in (layer.layer_norm1, layer.layer_norm2) for tensor in (one.weight, one.bias)]
        kept = [*map(floats, norms), *(floats(one.weight) for one in parts), *(floats(one.bias) for one in parts)]
        self._native.set_layer(number, False, *map(address, kept))


_NO_PATCHES = (1, 1, 1)
"""Channels, frames and pixels of patches: what comes in is embedded already."""
_NO_MERGERS = (1, 1, -1)
"""Squares of one row, and none of them merged."""
