"""LLaVA-OneVision: an overview square, then the picture in the best-fitting grid of squares ("anyres")."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from chiasm.errors import UnsupportedModelError
from chiasm.media.kernels.base import Pixels
from chiasm.media.kernels.registry import kernels
from chiasm.media.prepare.base import ImagePlan, PreparedImage
from chiasm.media.prepare.output import new_output
from chiasm.media.prepare.pixels import (
    CLIP_MEAN,
    CLIP_STD,
    COMMON_DEFAULTS,
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

_SIDES = range(384, 2305, 384)
_DEFAULTS: dict[str, Any] = COMMON_DEFAULTS | {
    "image_mean": CLIP_MEAN,
    "image_std": CLIP_STD,
    "resample": 3,
    "size": {"height": 384, "width": 384},
    "do_center_crop": False,
    "image_grid_pinpoints": [[height, width] for height in _SIDES for width in _SIDES],
}
_SHRINK_ABOVE = 1.1


class LlavaOnevisionPreparer:
    """`LlavaOnevisionImageProcessor`. Floats: `pixel_values` [1 + tiles, channels, side, side].

    Every picture is split as if it were the only one of its request, so that its embedding can be reused.
    """

    def __init__(self, directory: Path, processor: Mapping[str, Any], model: Mapping[str, Any]) -> None:
        del directory
        settings = settings_of("LlavaOnevisionImageProcessor", processor, _DEFAULTS)
        require_supported("LlavaOnevisionImageProcessor", settings, {"do_center_crop": False})
        self._side = _square(settings["size"])
        self._grids = [(width, height) for height, width in settings["image_grid_pinpoints"]]
        self._resample: int = settings["resample"]
        self._table = normalization_table(settings)
        tower = VisionTower.of(model, pixels=self._side, default_strategy="full")
        self._max_tiles = _max_tiles(model.get("vision_aspect_ratio", "anyres_max_9"))
        self._patches = tower.patches_per_side
        if tower.num_embeddings != self._patches**2:
            raise UnsupportedModelError(
                f"LLaVA-OneVision with {tower.num_embeddings} embeddings for {self._patches} x {self._patches} patches"
                " is not supported: every patch must give one",
                hint="serve it by vLLM: chiasm serve --engine vllm --topology agg",
            )
        self._revision = revision_of(
            "llava_onevision", settings | {"patches": self._patches, "max_tiles": self._max_tiles}
        )

    @property
    def revision(self) -> str:
        """See `ImagePreparer`."""
        return self._revision

    def least_size(self, width: int, height: int) -> None:
        """See `ImagePreparer`."""

    def plan(self, width: int, height: int) -> ImagePlan:
        """See `ImagePreparer`."""
        require_aspect_ratio(width, height)
        grid = best_grid(width, height, self._grids)
        columns, rows = (length // self._side for length in grid)
        kept_rows, kept_columns = self._kept_patches(width, height, rows, columns)
        # every row of patches ends in one "new line" embedding
        num_embeddings = self._patches**2 + kept_rows * (kept_columns + 1)
        return ImagePlan(
            width=width,
            height=height,
            num_embeddings=num_embeddings,
            num_prompt_tokens=num_embeddings,
            tiles=(rows, columns),
            resized=grid,
        )

    def _kept_patches(self, width: int, height: int, rows: int, columns: int) -> tuple[int, int]:
        """Rows and columns of patches left when the grid's empty borders are cut off and the rest is shrunk to fit."""
        kept_rows, kept_columns = rows * self._patches, columns * self._patches
        if width / height > kept_columns / kept_rows:
            content = int(round(height * (kept_columns / width), 7))
            kept_rows -= (kept_rows - content) // 2 * 2
        else:
            content = int(round(width * (kept_rows / height), 7))
            kept_columns -= (kept_columns - content) // 2 * 2
        shrink = math.sqrt(kept_rows * kept_columns / (self._max_tiles * self._patches**2))
        if shrink > _SHRINK_ABOVE:
            return int(kept_rows // shrink), int(kept_columns // shrink)
        return kept_rows, kept_columns

    def prepare(self, picture: Image.Image | Pixels, size: tuple[int, int] | None = None) -> PreparedImage:
        """See `ImagePreparer`."""
        pixels = pixels_of(picture)
        plan = self.plan(*(size or size_of(pixels)))
        values = new_output((1 + math.prod(plan.tiles), 3, self._side, self._side))
        squares(pixels, (self._side, self._side), self._resample, values[:1])
        content = kernels().resize(pixels, _fitted((plan.width, plan.height), plan.resized), self._resample)
        squares(filled(plan.resized, (0, 0, 0), content), plan.resized, self._resample, values[1:])
        return PreparedImage(plan, {"pixel_values": values, "table": self._table})


def best_grid(width: int, height: int, grids: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Pick the (width, height) that keeps most of the picture's pixels and, among those, wastes least."""

    def rank(grid: tuple[int, int]) -> tuple[int, int]:
        scale = min(grid[0] / width, grid[1] / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        return kept, kept - grid[0] * grid[1]

    return max(grids, key=rank)


def _fitted(size: tuple[int, int], grid: tuple[int, int]) -> tuple[int, int]:
    """The largest size of the picture's proportions inside the grid."""
    by_width, by_height = (outer / inner for outer, inner in zip(grid, size, strict=True))
    if by_width < by_height:
        return grid[0], min(math.ceil(size[1] * by_width), grid[1])
    return min(math.ceil(size[0] * by_height), grid[0]), grid[1]


def _square(size: Mapping[str, int] | int) -> int:
    if isinstance(size, int):
        return size
    sides = {size[name] for name in ("height", "width", "shortest_edge") if name in size}
    if len(sides) != 1:
        raise UnsupportedModelError(
            f"LlavaOnevisionImageProcessor with the size {dict(size)} is not supported, only squares"
        )
    return sides.pop()


def _max_tiles(aspect_ratio: str) -> int:
    number = aspect_ratio.removeprefix("anyres_max_")
    if not number.isdigit():
        raise UnsupportedModelError(
            f"vision_aspect_ratio {aspect_ratio!r} is not supported, only 'anyres_max_<number>'",
            hint="serve it by vLLM: chiasm serve --engine vllm --topology agg",
        )
    return int(number)
