"""CLIP's and SigLIP's directories to two towers that share a space."""

import math
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers import AutoModel

from chiasm.engines.embedded.families.loading import read_weights
from chiasm.engines.pooling.attention import IMPLEMENTATION
from chiasm.engines.pooling.backbone import Computing, arranged_tower
from chiasm.engines.pooling.dual import FilledTexts, ImageTower, PackedEmbeddings
from chiasm.engines.pooling.loaded import LoadedPooler
from chiasm.engines.pooling.packing import packed
from chiasm.errors import EngineStartError


def load_dual(directory: Path, config: Any, computing: Computing) -> LoadedPooler:
    """Load both towers. Raises `EngineStartError`."""
    dtype = computing.dtype
    is_siglip = config.model_type == "siglip"
    ways = {"text_config": "sdpa" if is_siglip else IMPLEMENTATION, "vision_config": "sdpa"}
    whole = read_weights(AutoModel, directory, config, dtype, attn_implementation=ways)
    whole.vision_model = arranged_tower(whole.vision_model, computing, only_first=not is_siglip)
    return _siglip(directory, whole, config, dtype) if is_siglip else _clip(whole, config, dtype)


def _clip(whole: Any, config: Any, dtype: torch.dtype) -> LoadedPooler:
    text, width = whole.text_model, config.projection_dim
    text.embeddings = PackedEmbeddings(text.embeddings)
    return LoadedPooler(
        packed(text, dtype),
        packed(whole.text_projection.float(), torch.float32),
        width,
        has_type_ids=False,
        first_position=0,
        images=ImageTower(whole.vision_model, whole.visual_projection, dtype, (1, width)),
    )


def _siglip(directory: Path, whole: Any, config: Any, dtype: torch.dtype) -> LoadedPooler:
    text, width = whole.text_model, config.text_config.projection_size
    head, text.head = text.head, nn.Identity()  # applied to pooled rows instead
    return LoadedPooler(
        FilledTexts(packed(text, dtype)),
        packed(head.float(), torch.float32),
        width,
        has_type_ids=False,
        first_position=0,
        images=ImageTower(whole.vision_model, nn.Identity(), dtype, (1, width)),
        similarity=(math.exp(_number(directory, "logit_scale")), _number(directory, "logit_bias")),
    )


def _number(directory: Path, name: str) -> float:
    """One number of the weights, as exact as it was written: in bfloat16 a scale would be off by a percent."""
    for path in directory.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            if name in file.keys():  # noqa: SIM118 - the file is no mapping
                return float(file.get_tensor(name).float())
    raise EngineStartError(f"{directory.name} has no {name}", hint="download the model again")
