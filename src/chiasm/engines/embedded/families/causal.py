"""Text-only models of the Llama shape."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from chiasm.engines.embedded.families.base import LoadedModel, PlacedImage
from chiasm.engines.embedded.families.loading import read_weights
from chiasm.engines.embedded.families.text import require_llama_shaped
from chiasm.engines.embedded.mrope import linear_positions
from chiasm.media.prepare.base import ImagePlan, PreparedImage

_CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


class Causal:
    """Llama, Mistral, Qwen2 and Qwen3 without experts or sliding windows. Takes no pictures."""

    name: ClassVar[str] = "causal"
    model_types: ClassVar[tuple[str, ...]] = tuple(_CLASSES)

    def __init__(self, directory: Path, config: Any) -> None:
        require_llama_shaped(config)
        self._directory = directory
        self._config = config

    @property
    def preparer(self) -> None:
        """See `Family`."""
        return

    @property
    def image_token_id(self) -> None:
        """See `Family`."""
        return

    @property
    def video_token_id(self) -> None:
        """See `Family`."""
        return

    @property
    def num_deepstack_levels(self) -> int:
        """See `Family`."""
        return 0

    @property
    def frequency_axes(self) -> NDArray[np.int64] | None:
        """See `Family`."""
        return None

    def expand(self, plan: ImagePlan) -> list[int]:
        """Never called: without a preparer there is no plan."""
        raise AssertionError("a text-only model has no pictures to expand")

    def positions(self, num_tokens: int, images: Sequence[PlacedImage]) -> tuple[NDArray[np.int64], int]:
        """See `Family`."""
        assert not images, "a text-only model places no pictures"
        return linear_positions(num_tokens)

    def load(self, dtype: torch.dtype) -> LoadedModel:
        """See `Family`."""
        kind = self._config.model_type
        module = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
        model = read_weights(getattr(module, _CLASSES[kind]), self._directory, self._config, dtype)
        return LoadedModel(text=model.model, lm_head=model.lm_head.weight, vision=None)

    def encode(self, model: LoadedModel, images: Sequence[PreparedImage]) -> list[torch.Tensor]:
        """Never called: without a preparer there is no picture."""
        raise AssertionError("a text-only model encodes no pictures")
