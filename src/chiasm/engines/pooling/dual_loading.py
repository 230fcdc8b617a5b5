"""CLIP's and SigLIP's directories to two towers that share a space."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModel

from chiasm.engines.embedded.families.loading import read_weights
from chiasm.engines.pooling.attention import IMPLEMENTATION
from chiasm.engines.pooling.dual import ImageTower, PackedEmbeddings
from chiasm.engines.pooling.loaded import LoadedPooler
from chiasm.engines.pooling.packing import packed


def load_dual(directory: Path, config: Any, dtype: torch.dtype) -> LoadedPooler:
    """Load both towers. Raises `EngineStartError`."""
    ways = {"text_config": IMPLEMENTATION, "vision_config": "sdpa"}
    whole = read_weights(AutoModel, directory, config, dtype, attn_implementation=ways)
    text = whole.text_model
    text.embeddings = PackedEmbeddings(text.embeddings)
    similarity: tuple[float, float] | None = None
    if config.model_type == "siglip":
        similarity = float(whole.logit_scale.exp()), float(whole.logit_bias)
        text_head, picture_head = text.head, nn.Identity()
        text.head = nn.Identity()  # it would take the last token of the row only
        width = config.text_config.projection_size
    else:
        text_head, picture_head = whole.text_projection, whole.visual_projection
        width = config.projection_dim
    return LoadedPooler(
        packed(text, dtype),
        packed(text_head.float(), torch.float32),
        width,
        has_type_ids=False,
        first_position=0,
        images=ImageTower(whole.vision_model, picture_head, dtype, (1, width)),
        similarity=similarity,
    )
