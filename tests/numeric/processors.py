"""Image processor configurations to compare with, each in a directory without weights."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from chiasm.media.prepare.base import ImagePreparer
from chiasm.media.prepare.registry import preparer_for
from tests.numeric.random_models import CLIP, RECIPES, SIGLIP


@dataclass(frozen=True)
class Case:
    """A processor as its Hugging Face class and as the JSON files of a model directory."""

    reference: Callable[..., Any]
    processor: dict[str, Any]
    model: dict[str, Any]

    def preparer(self, directory: Path) -> ImagePreparer:
        """Write the directory and build ours from it."""
        (directory / "preprocessor_config.json").write_text(json.dumps(self.processor), encoding="utf-8")
        (directory / "config.json").write_text(json.dumps(self.model), encoding="utf-8")
        (directory / "tokenizer.json").write_text(json.dumps(_tokenizer()), encoding="utf-8")
        preparer = preparer_for(directory)
        assert preparer is not None
        return preparer

    def processor_reference(self) -> Any:
        """Build theirs."""
        return self.reference(**{key: value for key, value in self.processor.items() if key != "image_processor_type"})


def _tokenizer() -> dict[str, Any]:
    tiles = [f"<row_{row}_col_{column}>" for row in range(1, 13) for column in range(1, 13)]
    added = ["<fake_token_around_image>", "<global-img>", "<image>", *tiles]
    return {"model": {"vocab": {"\u010a\u010a": 0}}, "added_tokens": [{"id": 0, "content": token} for token in added]}


def _case(reference: Callable[..., Any], model: dict[str, Any] | None = None, **processor: Any) -> Case:
    kind = reference.__name__.removesuffix("Pil")  # type: ignore[attr-defined]
    return Case(reference, {"image_processor_type": kind, **processor}, model or {})


def _recipe(family: str, reference: Callable[..., Any]) -> Case:
    recipe = RECIPES[family]
    assert recipe.processor is not None
    return Case(reference, recipe.processor, recipe.config)


def _llava(vision: dict[str, Any], side: int, strategy: str = "default") -> dict[str, Any]:
    return {"vision_config": vision | {"image_size": side}, "vision_feature_select_strategy": strategy}


CASES: dict[str, Case] = {
    "qwen2_vl": _case(Qwen2VLImageProcessorPil, max_pixels=256 * 28 * 28),
    "qwen2_vl_small": _recipe("qwen2_vl", Qwen2VLImageProcessorPil),
    "qwen3_vl_small": _recipe("qwen3_vl", Qwen2VLImageProcessorPil),
    "qwen_three_frames": _case(
        Qwen2VLImageProcessorPil,
        temporal_patch_size=3,
        merge_size=1,
        patch_size=8,
        do_rescale=False,
        resample=2,
        size={"shortest_edge": 1, "longest_edge": 64 * 64},
    ),
    "qwen_unnormalized": _case(
        Qwen2VLImageProcessorPil, do_normalize=False, rescale_factor=0.01, min_pixels=784, max_pixels=50_000
    ),
    "idefics3": _case(Idefics3ImageProcessorPil),
    "idefics3_small": _recipe("idefics3", Idefics3ImageProcessorPil),
    "idefics3_above_limit": _case(
        Idefics3ImageProcessorPil, size={"longest_edge": 4200}, max_image_size={"longest_edge": 1000}
    ),
    "idefics3_uneven": _case(
        Idefics3ImageProcessorPil, size={"longest_edge": 250}, max_image_size={"longest_edge": 64}
    ),
    "idefics3_whole": _case(Idefics3ImageProcessorPil, size={"longest_edge": 250}, do_image_splitting=False),
    "smolvlm": _case(
        SmolVLMImageProcessorPil,
        {"vision_config": {"patch_size": 16}, "scale_factor": 4},
        size={"longest_edge": 2048},
        max_image_size={"longest_edge": 512},
    ),
    "smolvlm_small": _recipe("smolvlm", SmolVLMImageProcessorPil),
    "clip": _case(
        CLIPImageProcessorPil,
        _llava(CLIP, 336),
        size={"shortest_edge": 336},
        crop_size={"height": 336, "width": 336},
    ),
    "clip_small_crop": _case(CLIPImageProcessorPil, _llava(CLIP, 33), size=48, crop_size=33),
    "clip_no_crop": _case(
        CLIPImageProcessorPil, _llava(CLIP, 32), size={"height": 32, "width": 32}, do_center_crop=False
    ),
    "llava": _case(
        LlavaImageProcessorPil,
        _llava(CLIP, 56),
        size={"shortest_edge": 56},
        crop_size={"height": 56, "width": 56},
        do_pad=True,
    ),
    "llava_unpadded": _case(
        LlavaImageProcessorPil,
        _llava(CLIP, 56),
        size={"shortest_edge": 56},
        crop_size={"height": 56, "width": 56},
        do_pad=False,
    ),
    "siglip": _case(SiglipImageProcessorPil, _llava(SIGLIP, 384, "full"), size={"height": 384, "width": 384}),
    "llava_onevision_small": _recipe("llava_onevision", LlavaOnevisionImageProcessorPil),
    "llava_onevision": _case(
        LlavaOnevisionImageProcessorPil,
        {"vision_config": SIGLIP | {"image_size": 384, "patch_size": 14}},
        image_mean=[0.5, 0.5, 0.5],
        image_std=[0.5, 0.5, 0.5],
    ),
}
"""Configurations of published models and small ones that take the other branches."""

LARGE = frozenset({"clip", "idefics3", "idefics3_above_limit", "smolvlm", "llava_onevision"})
"""Those that make millions of pixels of any picture, and so get fewer pictures."""
