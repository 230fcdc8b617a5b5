"""What Qwen2-VL, Qwen2.5-VL and Qwen3-VL share: a list of patches with a grid, and M-RoPE."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from chiasm.engines.embedded.families.base import LoadedModel, PlacedImage
from chiasm.engines.embedded.families.pictures import PictureFamily
from chiasm.engines.embedded.mrope import frequency_axes, mrope_positions
from chiasm.engines.embedded.tower.torch_tower import TorchTower
from chiasm.media.prepare.base import ImagePlan, PreparedImage


class QwenVL(PictureFamily):
    """Base of the Qwen-VL families; a family adds its name, its model class and its frequency layout."""

    interleaved_frequencies: ClassVar[bool]

    def __init__(self, directory: Path, config: Any) -> None:
        super().__init__(directory, config)
        sections = config.text_config.rope_parameters["mrope_section"]
        # Qwen2.5-VL alone places a video's frames by the clock
        self._ticks_per_s = getattr(config.vision_config, "tokens_per_second", None)
        self._frequency_axes = frequency_axes(sections, interleaved=self.interleaved_frequencies)

    @property
    def num_deepstack_levels(self) -> int:
        """See `Family`."""
        return len(getattr(self._config.vision_config, "deepstack_visual_indexes", ()))

    @property
    def frequency_axes(self) -> NDArray[np.int64]:
        """See `Family`."""
        return self._frequency_axes

    @property
    def video_token_id(self) -> int:
        """See `Family`."""
        return int(self._config.video_token_id)

    def expand(self, plan: ImagePlan) -> list[int]:
        """See `Family`."""
        return [self.image_token_id if plan.kind == "image" else self.video_token_id] * plan.num_embeddings

    def positions(self, num_tokens: int, images: Sequence[PlacedImage]) -> tuple[NDArray[np.int64], int]:
        """See `Family`."""
        return mrope_positions(num_tokens, images, self._ticks_per_s)

    def load(self, dtype: torch.dtype) -> LoadedModel:
        """See `Family`."""
        model = self._read(dtype)
        tower = TorchTower(model.model.visual)
        return LoadedModel(text=model.model.language_model, lm_head=model.lm_head.weight, vision=tower)

    @torch.inference_mode()
    def encode(self, model: LoadedModel, images: Sequence[PreparedImage]) -> list[torch.Tensor]:
        """See `Family`."""
        tower: Any = model.vision
        encoded: dict[int, torch.Tensor] = {}
        for kind in ("image", "video"):
            places = [place for place, image in enumerate(images) if image.plan.kind == kind]
            if places:
                chosen = [images[place] for place in places]
                rows = torch.split(tower.encode(chosen), [image.plan.num_embeddings for image in chosen])
                encoded |= dict(zip(places, rows, strict=True))
        return [encoded[place] for place in range(len(images))]
