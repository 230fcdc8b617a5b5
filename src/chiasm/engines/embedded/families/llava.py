"""LLaVA: a fixed number of embeddings per picture from a CLIP or SigLIP tower."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from transformers.models.llava.modeling_llava import LlavaForConditionalGeneration

from chiasm.engines.embedded.families.base import LoadedModel
from chiasm.engines.embedded.families.pictures import PictureFamily, pixel_values
from chiasm.media.prepare.base import PreparedImage


class Llava(PictureFamily):
    """`LlavaForConditionalGeneration`: LLaVA 1.5 and its relatives."""

    name: ClassVar[str] = "llava"
    model_types: ClassVar[tuple[str, ...]] = ("llava",)
    model_class: ClassVar[Any] = LlavaForConditionalGeneration

    def load(self, dtype: torch.dtype) -> LoadedModel:
        """See `Family`."""
        model = self._read(dtype)
        vision, text = model.model, model.model.language_model
        vision.language_model = None  # so that the text weights are not held twice
        return LoadedModel(text=text, lm_head=model.lm_head.weight, vision=vision)

    @torch.inference_mode()
    def encode(self, model: LoadedModel, images: Sequence[PreparedImage]) -> list[torch.Tensor]:
        """See `Family`."""
        vision: Any = model.vision
        channels = pixel_values(images, vision)
        squares = channels.view(len(images), -1, *channels.shape[1:])
        return list(vision.get_image_features(squares, return_dict=True).pooler_output)
