"""What Qwen2-VL, Qwen2.5-VL and Qwen3-VL share: a list of patches with a grid, and M-RoPE."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from chiasm.engines.embedded.families.base import LoadedModel, PlacedImage
from chiasm.engines.embedded.families.pictures import PictureFamily, pixel_values
from chiasm.engines.embedded.mrope import frequency_axes, mrope_positions
from chiasm.media.prepare.base import PreparedImage


class PatchLinear(nn.Module):
    """The patch embedding of pictures as one matrix product.

    The kernel of the original convolution covers a patch exactly, so the flattened kernel gives the same sums; oneDNN's
    `Conv3d` takes several times as long for them. A picture fills all frames of a patch alike, so the kernel's frames
    are added up once, and only the first frame is multiplied.
    """

    def __init__(self, convolution: nn.Conv3d) -> None:
        super().__init__()
        kernel = convolution.weight.detach()
        self._frames = (kernel.shape[1], kernel.shape[2])
        self.weight = kernel.sum(2).flatten(1)
        self.bias = None if convolution.bias is None else convolution.bias.detach()

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """[patches, channels x frames x side x side], frames alike, to [patches, hidden_size]."""
        first = patches.view(len(patches), *self._frames, -1)[:, :, 0].flatten(1)
        return functional.linear(first.to(self.weight.dtype), self.weight, self.bias)


class QwenVL(PictureFamily):
    """Base of the Qwen-VL families; a family adds its name, its model class and its frequency layout."""

    interleaved_frequencies: ClassVar[bool]

    def __init__(self, directory: Path, config: Any) -> None:
        super().__init__(directory, config)
        sections = config.text_config.rope_parameters["mrope_section"]
        self._frequency_axes = frequency_axes(sections, interleaved=self.interleaved_frequencies)

    @property
    def num_deepstack_levels(self) -> int:
        """See `Family`."""
        return len(getattr(self._config.vision_config, "deepstack_visual_indexes", ()))

    @property
    def frequency_axes(self) -> NDArray[np.int64]:
        """See `Family`."""
        return self._frequency_axes

    def positions(self, num_tokens: int, images: Sequence[PlacedImage]) -> tuple[NDArray[np.int64], int]:
        """See `Family`."""
        return mrope_positions(num_tokens, images)

    def load(self, dtype: torch.dtype) -> LoadedModel:
        """See `Family`."""
        model = self._read(dtype)
        vision = model.model.visual
        vision.patch_embed = PatchLinear(vision.patch_embed.proj)
        return LoadedModel(text=model.model.language_model, lm_head=model.lm_head.weight, vision=vision)

    @torch.inference_mode()
    def encode(self, model: LoadedModel, images: Sequence[PreparedImage]) -> list[torch.Tensor]:
        """See `Family`."""
        vision: Any = model.vision
        grids = torch.tensor([image.plan.grid_thw for image in images], device=vision.device)
        output = vision(pixel_values(images, vision), grid_thw=grids)
        levels = [output.pooler_output, *(getattr(output, "deepstack_features", None) or ())]
        return list(torch.split(torch.cat(levels, -1), [image.plan.num_embeddings for image in images]))
