"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: one resize to a multiple of the merged patch, then a flat list of patches."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from chiasm.media.kernels.base import Pixels
from chiasm.media.kernels.registry import kernels
from chiasm.media.prepare.base import ImagePlan, PreparedImage
from chiasm.media.prepare.pixels import (
    CLIP_MEAN,
    CLIP_STD,
    COMMON_DEFAULTS,
    normalization_table,
    pixels_of,
    require_aspect_ratio,
    revision_of,
    settings_of,
    size_of,
)

DEFAULTS: dict[str, Any] = COMMON_DEFAULTS | {
    "image_mean": CLIP_MEAN,
    "image_std": CLIP_STD,
    "resample": 3,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
}


def smart_resize(width: int, height: int, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Choose (width, height): multiples of `factor`, area within the limits, aspect ratio kept as far as that allows.

    Raises `MediaRefusedError` above an aspect ratio of 200, as the model's processor does.
    """
    require_aspect_ratio(width, height)
    new_width, new_height = (round(side / factor) * factor for side in (width, height))
    if new_width * new_height > max_pixels:
        shrink = math.sqrt((height * width) / max_pixels)
        new_width, new_height = (max(factor, math.floor(side / shrink / factor) * factor) for side in (width, height))
    elif new_width * new_height < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        new_width, new_height = (math.ceil(side * grow / factor) * factor for side in (width, height))
    return new_width, new_height


class Qwen2VLPreparer:
    """`Qwen2VLImageProcessor`. Floats: `pixel_values` [patches, channels x frames x patch x patch]."""

    def __init__(self, directory: Path, processor: Mapping[str, Any], model: Mapping[str, Any]) -> None:
        del directory, model  # the processor's own configuration says it all
        settings = settings_of("Qwen2VLImageProcessor", processor, DEFAULTS)
        limits = processor.get("size") or {}
        settings["min_pixels"] = _limit(processor, limits, "min_pixels", "shortest_edge", 56 * 56)
        settings["max_pixels"] = _limit(processor, limits, "max_pixels", "longest_edge", 28 * 28 * 1280)
        self._revision = revision_of("qwen2_vl", settings)
        self._table = normalization_table(settings)
        self._patch: int = settings["patch_size"]
        self._merge: int = settings["merge_size"]
        self._frames: int = settings["temporal_patch_size"]
        self._resample: int = settings["resample"]
        self._limits: tuple[int, int] = (settings["min_pixels"], settings["max_pixels"])

    @property
    def revision(self) -> str:
        """See `ImagePreparer`."""
        return self._revision

    def least_size(self, width: int, height: int) -> None:
        """See `ImagePreparer`."""

    def plan(self, width: int, height: int) -> ImagePlan:
        """See `ImagePreparer`."""
        size = smart_resize(width, height, self._patch * self._merge, *self._limits)
        columns, rows = size[0] // self._patch, size[1] // self._patch
        num_embeddings = rows * columns // self._merge**2
        return ImagePlan(
            width=width,
            height=height,
            num_embeddings=num_embeddings,
            num_prompt_tokens=num_embeddings,
            grid_thw=(1, rows, columns),
            merge_size=self._merge,
            patch_frames=self._frames,
            resized=size,
        )

    def prepare(self, picture: Image.Image | Pixels, size: tuple[int, int] | None = None) -> PreparedImage:
        """See `ImagePreparer`."""
        pixels = pixels_of(picture)
        plan = self.plan(*(size or size_of(pixels)))
        patches = kernels().patches(pixels, plan.resized, self._resample, self._patch, self._merge)
        return PreparedImage(plan, {"pixel_values": patches, "table": self._table})


def _limit(processor: Mapping[str, Any], size: Mapping[str, Any], name: str, edge: str, default: int) -> int:
    """The pixel limit from its own field, which wins, or from either spelling inside `size`."""
    values = (processor.get(name), size.get(edge), size.get(name), default)
    return next(int(value) for value in values if value is not None)
