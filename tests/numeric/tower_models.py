"""Vision towers under test: small random Qwen-VL vision models, and pictures for them."""

from typing import Any

import numpy as np
import torch
from transformers import AutoConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

from chiasm.engines.embedded.decoder.native_decoder import kernels_for
from chiasm.engines.embedded.tower.native_tower import NativeTower
from chiasm.engines.embedded.tower.torch_tower import TorchTower
from chiasm.media.prepare.base import ImagePlan, PreparedImage
from tests.numeric.random_models import RECIPES

CLASSES: dict[str, Any] = {
    "qwen2_vl": Qwen2VisionTransformerPretrainedModel,
    "qwen2_5_vl": Qwen2_5_VisionTransformerPretrainedModel,
    "qwen3_vl": Qwen3VLVisionModel,
}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("qwen3_vl", {}),
    "qwen2": ("qwen2_vl", {}),
    "qwen2.5": ("qwen2_5_vl", {}),
    "exact gelu, odd sizes": (
        "qwen3_vl",
        {
            "hidden_size": 120,
            "num_heads": 5,
            "intermediate_size": 101,
            "out_hidden_size": 51,
            "hidden_act": "gelu",
            "num_position_embeddings": 9,
            "deepstack_visual_indexes": [2, 0],
        },
    ),
    "wide heads, no levels": (
        "qwen3_vl",
        {"hidden_size": 144, "num_heads": 1, "depth": 2, "deepstack_visual_indexes": []},
    ),
    "heads that only the generic code takes": ("qwen3_vl", {"hidden_size": 60, "num_heads": 3, "depth": 1}),
    "squares of nine patches": ("qwen2_5_vl", {"spatial_merge_size": 3, "window_size": 84}),
}


def vision_model(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """A Hugging Face vision model with weights, norms and biases that matter."""
    family, more = CONFIGS[name]
    recipe = RECIPES[family].config["vision_config"] | more
    config = AutoConfig.for_model(**(RECIPES[family].config | {"vision_config": recipe})).vision_config
    if "deepstack_visual_indexes" in recipe:
        config.deepstack_visual_indexes = [i for i in recipe["deepstack_visual_indexes"] if i < config.depth]
    torch.manual_seed(len(name))
    model = CLASSES[family]._from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            else:
                parameter.mul_(6)
    return model.to(dtype)


def native_kinds(name: str) -> list[str]:
    """Variants of the C code that run here and suit the model's heads; none where it was not built."""
    config = RECIPES[CONFIGS[name][0]].config["vision_config"] | CONFIGS[name][1]
    head_dim = config.get("embed_dim", config["hidden_size"]) // config["num_heads"]
    return [kind for kind in ("avx512", "avx2", "generic") if kernels_for(head_dim, kind)]


NATIVE = [(name, kind) for name in CONFIGS for kind in native_kinds(name)]


def make(kind: str, model: Any, *, threads: int = 1) -> NativeTower:
    return NativeTower(model, threads=threads, kernels=kind, alone_products=0)


def pictures(tower: TorchTower, seed: int = 0) -> list[PreparedImage]:
    """Noise on grids that are long, tiny, larger than a block of keys, and no multiple of anything."""
    config = tower.vision.config
    merge, rng = config.spatial_merge_size, np.random.default_rng(seed)
    values = 3 * config.temporal_patch_size * config.patch_size**2
    prepared = []
    for height, width in ((5, 8), (1, 1), (11, 3), (1, 30), (9, 9)):
        grid = (1, height * merge, width * merge)
        frame = rng.standard_normal((height * width * merge**2, 3, 1, config.patch_size**2), np.float32)
        patches = np.repeat(frame, config.temporal_patch_size, 2).reshape(-1, values)
        num = height * width
        plan = ImagePlan(width=1, height=1, num_prompt_tokens=num, num_embeddings=num, grid_thw=grid, resized=(1, 1))
        prepared.append(PreparedImage(plan, {"pixel_values": patches}))
    return prepared
