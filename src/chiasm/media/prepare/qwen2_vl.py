"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: one resize to a multiple of the merged patch, then a flat list of patches."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from chiasm.media.kernels.base import Pixels, shape_of_patches
from chiasm.media.kernels.registry import kernels
from chiasm.media.prepare.base import ImagePlan, PreparedImage
from chiasm.media.prepare.model_files import read_json
from chiasm.media.prepare.output import new_output
from chiasm.media.prepare.pixels import (
    CLIP_MEAN,
    CLIP_STD,
    COMMON_DEFAULTS,
    normalization_table,
    pixels_of,
    revision_of,
    settings_of,
    size_of,
)
from chiasm.media.prepare.qwen_video import QwenVideoPreparer
from chiasm.media.prepare.resizing import smart_resize

DEFAULTS: dict[str, Any] = COMMON_DEFAULTS | {
    "image_mean": CLIP_MEAN,
    "image_std": CLIP_STD,
    "resample": 3,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
}


class Qwen2VLPreparer:
    """`Qwen2VLImageProcessor`. Floats: `pixel_values` [patches, channels x frames x patch x patch]."""

    def __init__(self, directory: Path, processor: Mapping[str, Any], model: Mapping[str, Any]) -> None:
        settings = settings_of("Qwen2VLImageProcessor", processor, DEFAULTS)
        limits = processor.get("size") or {}
        settings["min_pixels"] = _limit(processor, limits, "min_pixels", "shortest_edge", 56 * 56)
        settings["max_pixels"] = _limit(processor, limits, "max_pixels", "longest_edge", 28 * 28 * 1280)
        self._video = _video_preparer(directory, processor, model)
        video = {} if self._video is None else {"video": self._video.settings}
        self._revision = revision_of("qwen2_vl", settings | video)
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

    @property
    def video(self) -> QwenVideoPreparer | None:
        """How videos are prepared; None where the model has no place for them."""
        return self._video

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
        patches = new_output(shape_of_patches(plan.resized, self._patch))
        kernels().patches(pixels, plan.resized, self._resample, self._patch, self._merge, patches)
        return PreparedImage(plan, {"pixel_values": patches, "table": self._table})


def _limit(processor: Mapping[str, Any], size: Mapping[str, Any], name: str, edge: str, default: int) -> int:
    """The pixel limit from its own field, which wins, or from either spelling inside `size`."""
    values = (processor.get(name), size.get(edge), size.get(name), default)
    return next(int(value) for value in values if value is not None)


def _video_preparer(
    directory: Path, processor: Mapping[str, Any], model: Mapping[str, Any]
) -> QwenVideoPreparer | None:
    """From the video processor's own file or, in older models, from that of the picture processor."""
    if not isinstance(model.get("video_token_id"), int):
        return None
    nested = (read_json(directory / "processor_config.json") or {}).get("video_processor")
    own = nested if isinstance(nested, dict) else read_json(directory / "video_preprocessor_config.json")
    return QwenVideoPreparer(processor if own is None else own, is_qwen3=model.get("model_type") == "qwen3_vl")
