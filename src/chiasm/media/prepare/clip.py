"""CLIP, SigLIP and LLaVA processors: every picture becomes one square of a fixed size."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from chiasm.errors import UnsupportedModelError
from chiasm.media.kernels.base import Part, Pixels, Resizing
from chiasm.media.kernels.registry import kernels
from chiasm.media.prepare.base import ImagePlan, PreparedImage
from chiasm.media.prepare.output import new_output
from chiasm.media.prepare.pixels import (
    CLIP_MEAN,
    CLIP_STD,
    COMMON_DEFAULTS,
    HALF,
    filled,
    normalization_table,
    pixels_of,
    require_aspect_ratio,
    require_supported,
    revision_of,
    settings_of,
    size_of,
    squares,
)
from chiasm.media.prepare.tower import VisionTower

_CLIP: dict[str, Any] = COMMON_DEFAULTS | {
    "image_mean": CLIP_MEAN,
    "image_std": CLIP_STD,
    "resample": 3,
    "size": {"shortest_edge": 224},
    "do_center_crop": True,
    "crop_size": 224,
    "do_pad": False,
}
_SIGLIP: dict[str, Any] = _CLIP | {
    "image_mean": HALF,
    "image_std": HALF,
    "size": {"height": 224, "width": 224},
    "do_center_crop": False,
}


class ClipPreparer:
    """`CLIPImageProcessor` before a LLaVA model. Floats: `pixel_values` [channels, side, side].

    Resize the shorter side, or both sides, to the wanted length, then cut out the middle.
    """

    kind: ClassVar[str] = "clip"
    defaults: ClassVar[Mapping[str, Any]] = _CLIP

    def __init__(self, directory: Path, processor: Mapping[str, Any], model: Mapping[str, Any]) -> None:
        del directory
        settings = settings_of(self.kind, processor, self.defaults)
        self._require_padding_supported(settings)
        self._shortest_edge, edge = _target(self.kind, settings["size"])
        self._side = _target(self.kind, settings["crop_size"])[1] if settings["do_center_crop"] else edge
        self._edge = edge
        if self._side > edge or (self._shortest_edge and not settings["do_center_crop"]):
            raise UnsupportedModelError(
                f"the image processor {self.kind} gives no squares of one size: it resizes to {settings['size']}"
                f" and crops to {settings['crop_size'] if settings['do_center_crop'] else 'nothing'}",
                hint="correct preprocessor_config.json or serve the model with vLLM itself",
            )
        tower = VisionTower.of(model, pixels=self._side)
        self._num_embeddings = tower.num_embeddings
        self._resample: int = settings["resample"]
        self._background = _background(settings) if settings["do_pad"] else None
        self._table = normalization_table(settings)
        self._revision = revision_of(self.kind, settings | {"num_embeddings": self._num_embeddings})

    def _require_padding_supported(self, settings: Mapping[str, Any]) -> None:
        require_supported(self.kind, settings, {"do_pad": False})

    @property
    def revision(self) -> str:
        """See `ImagePreparer`."""
        return self._revision

    def least_size(self, width: int, height: int) -> None:
        """See `ImagePreparer`."""

    def resizing(self, width: int, height: int) -> Resizing | None:
        """See `ResizesFirst`."""
        if self._background is not None:
            return None
        scaled = self._scaled(width, height)
        return Resizing(scaled, self._middle_of(scaled), self._resample)

    def plan(self, width: int, height: int) -> ImagePlan:
        """See `ImagePreparer`."""
        require_aspect_ratio(width, height)
        return ImagePlan(
            width=width,
            height=height,
            num_embeddings=self._num_embeddings,
            num_prompt_tokens=self._num_embeddings,
            resized=(self._side, self._side),
        )

    def prepare(self, picture: Image.Image | Pixels, size: tuple[int, int] | None = None) -> PreparedImage:
        """See `ImagePreparer`."""
        pixels = pixels_of(picture)
        plan = self.plan(*(size or size_of(pixels)))
        if self._background is not None:
            side = max(size_of(pixels))
            pixels = filled((side, side), self._background, pixels)
        scaled = self._scaled(*(size_of(pixels) if size is None or self._background is not None else size))
        if scaled != plan.resized:
            pixels = kernels().resize_part(pixels, scaled, self._middle_of(scaled), self._resample)
        return self.prepare_resized(np.ascontiguousarray(pixels), plan)

    def prepare_resized(self, pixels: Pixels, plan: ImagePlan) -> PreparedImage:
        """See `ResizesFirst`."""
        values = new_output((1, 3, self._side, self._side))
        squares(pixels, plan.resized, self._resample, values)
        return PreparedImage(plan, {"pixel_values": values[0], "table": self._table})

    def _middle_of(self, scaled: tuple[int, int]) -> Part:
        left, top = ((length - self._side) // 2 for length in scaled)
        return Part(left, top, self._side, self._side)

    def _scaled(self, width: int, height: int) -> tuple[int, int]:
        if not self._shortest_edge:
            return self._edge, self._edge
        long = int(self._edge * max(width, height) / min(width, height))
        return (self._edge, long) if width <= height else (long, self._edge)


class LlavaPreparer(ClipPreparer):
    """`LlavaImageProcessor`: as CLIP, after filling up to a square with the mean colour when `do_pad` says so."""

    kind: ClassVar[str] = "llava"

    def _require_padding_supported(self, settings: Mapping[str, Any]) -> None:
        """Both values are implemented."""


class SiglipPreparer(ClipPreparer):
    """`SiglipImageProcessor`: both sides to the wanted length, no crop."""

    kind: ClassVar[str] = "siglip"
    defaults: ClassVar[Mapping[str, Any]] = _SIGLIP


def _target(kind: str, size: Mapping[str, int] | int) -> tuple[bool, int]:
    """Whether `size` names the shorter side only, and the length in pixels."""
    if isinstance(size, int):
        return True, size
    if set(size) == {"shortest_edge"}:
        return True, size["shortest_edge"]
    if set(size) == {"height", "width"} and size["height"] == size["width"]:
        return False, size["height"]
    raise UnsupportedModelError(
        f"the image processor {kind} with the size {dict(size)} is not supported, only squares and 'shortest_edge'",
        hint="serve it by vLLM: chiasm serve --engine vllm --topology agg",
    )


def _background(settings: Mapping[str, Any]) -> tuple[int, int, int]:
    red, green, blue = (int(mean * 255) for mean in settings["image_mean"])
    return red, green, blue
