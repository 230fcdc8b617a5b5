"""LLaVA-OneVision: an overview, then tiles without their empty borders, each row ending in a new-line embedding."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from transformers.models.llava_onevision.modeling_llava_onevision import LlavaOnevisionForConditionalGeneration

from chiasm.engines.embedded.families.base import LoadedModel
from chiasm.engines.embedded.families.llava import Llava
from chiasm.engines.embedded.families.pictures import pixel_values
from chiasm.media.prepare.base import PreparedImage


class LlavaOnevision(Llava):
    """`LlavaOnevisionForConditionalGeneration`; every picture is split as if it were alone."""

    name: ClassVar[str] = "llava_onevision"
    model_types: ClassVar[tuple[str, ...]] = ("llava_onevision",)
    model_class: ClassVar[Any] = LlavaOnevisionForConditionalGeneration

    @torch.inference_mode()
    def encode(self, model: LoadedModel, images: Sequence[PreparedImage]) -> list[torch.Tensor]:
        """See `Family`."""
        vision: Any = model.vision
        sizes = [(image.plan.height, image.plan.width) for image in images]
        return list(vision.get_image_features(pixel_values(images, vision), sizes, return_dict=True).pooler_output)
