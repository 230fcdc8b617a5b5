"""An image ranker's directory to a text encoder, a vision tower and the adapter between them."""

from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from transformers import AutoConfig, AutoModel

from chiasm.engines.pooling.attention import IMPLEMENTATION
from chiasm.engines.pooling.backbone import Computing, arranged, arranged_tower
from chiasm.engines.pooling.dual import ImageTower
from chiasm.engines.pooling.loaded import LoadedPooler
from chiasm.engines.pooling.packing import filled, packed
from chiasm.engines.pooling.ranker import CrossModalAdapter, FeatureProjection
from chiasm.errors import EngineStartError
from chiasm.pooling.ranker_config import RankerConfig, read_ranker_config


class ImageRanker(nn.Module):
    """All weights of an image ranker, named as in its file."""

    def __init__(self, config: RankerConfig, *, text_attention: str = "sdpa") -> None:
        """Make layers with random weights. Raises `EngineStartError` for sizes that do not go together."""
        super().__init__()
        text = _configuration(config.text_config)
        vision = _configuration(config.vision_config)
        num_heads = config.adapter_config.num_attention_heads
        if text.hidden_size % num_heads:
            raise EngineStartError(
                f"The text's width of {text.hidden_size} cannot be shared out over {num_heads} heads of the adapter",
                hint="Give adapter_config.num_attention_heads a divisor of text_config.hidden_size",
            )
        kind: Any = AutoModel
        self.text_model: Any = kind.from_config(text, attn_implementation=text_attention)
        if getattr(self.text_model, "pooler", None) is not None:
            self.text_model.pooler = None
        self.vision_model: Any = kind.from_config(vision, attn_implementation="sdpa")
        eps = config.adapter_config.layer_norm_eps
        self.feature_projection = FeatureProjection(vision.hidden_size, text.hidden_size, eps)
        self.adapter = CrossModalAdapter(config.adapter_config, text.hidden_size)


def load_ranker(directory: Path, computing: Computing) -> LoadedPooler:
    """Load an image ranker; the adapter computes in float32. Raises `EngineStartError`."""
    config = read_ranker_config(directory)
    model = ImageRanker(config, text_attention=IMPLEMENTATION)
    try:
        model.load_state_dict(load_file(directory / "model.safetensors"))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise EngineStartError(
            f"Cannot load the weights of {directory.name}: {error}",
            hint="The folder needs a model.safetensors with every tensor of the architecture",
        ) from error
    model.eval().requires_grad_(requires_grad=False)
    dtype = computing.dtype
    text, vision = model.text_model.to(dtype), arranged_tower(model.vision_model.to(dtype), computing)
    projection = packed(model.feature_projection, torch.float32)
    num_rows = vision.embeddings.num_positions
    adapter = filled(packed(model.adapter, torch.float32))
    assert isinstance(adapter, CrossModalAdapter)
    offset = int(text.config.pad_token_id) + 1 if text.config.model_type in ("roberta", "xlm-roberta") else 0
    width = text.config.hidden_size
    return LoadedPooler(
        arranged(text, computing, offset),
        nn.Identity(),
        1,
        has_type_ids=getattr(text.config, "type_vocab_size", 0) > 1,
        first_position=offset,
        images=ImageTower(vision, projection, dtype, (num_rows, width), pools=False),
        adapter=adapter,
    )


def _configuration(written: Any) -> Any:
    fields = dict(written)
    name = str(fields.pop("model_type", ""))
    try:
        return AutoConfig.for_model(name, **fields)
    except (ValueError, TypeError, KeyError, StrictDataclassError) as error:
        raise EngineStartError(f"The configuration of {name or 'a model without a type'} is wrong: {error}") from error
