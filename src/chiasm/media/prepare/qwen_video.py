"""Videos for Qwen2-VL, Qwen2.5-VL and Qwen3-VL: frames of one size, cut into patches that span two frames.

Counts and sizes are those of the Hugging Face video processors. Pixels are resized and normalised as the picture
processor does it, with Pillow's arithmetic; theirs is torchvision's, which rounds otherwise where a frame is resized.
"""

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from chiasm.errors import MediaTooLargeError
from chiasm.media.kernels.base import Pixels
from chiasm.media.kernels.registry import kernels
from chiasm.media.prepare.base import ImagePlan, PreparedImage
from chiasm.media.prepare.output import new_output
from chiasm.media.prepare.pixels import CLIP_MEAN, CLIP_STD, COMMON_DEFAULTS, HALF, normalization_table, settings_of
from chiasm.media.prepare.resizing import smart_resize
from chiasm.media.video.packed import Frames
from chiasm.media.video.sampling import FPS_UNKNOWN, SamplingRule
from chiasm.protocol.media import MAX_SAMPLED_FRAMES, VideoSample

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SAMPLING: dict[str, Any] = {
    "fps": 2.0,
    "num_frames": None,
    "min_frames": 4,
    "max_frames": 768,
    "resample": 3,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "cap_pixels_per_frame": False,
}
_QWEN2 = _SAMPLING | {
    "image_mean": CLIP_MEAN,
    "image_std": CLIP_STD,
    "patch_size": 14,
    "max_video_tokens": 128_000,
    "size": {"shortest_edge": 128 * 28 * 28, "longest_edge": 768 * 28 * 28},
}
_QWEN3 = _SAMPLING | {
    "image_mean": HALF,
    "image_std": HALF,
    "patch_size": 16,
    "max_video_tokens": 768,
    "size": {"shortest_edge": 128 * 32 * 32, "longest_edge": 768 * 32 * 32},
}


class QwenVideoPreparer:
    """`Qwen2VLVideoProcessor` and `Qwen3VLVideoProcessor`. Floats: [patches, channels x frames x patch x patch]."""

    def __init__(self, processor: Mapping[str, Any], *, is_qwen3: bool) -> None:
        """Take the video processor's configuration. Raises `UnsupportedModelError` for what is not implemented."""
        name, defaults = ("Qwen3VLVideoProcessor", _QWEN3) if is_qwen3 else ("Qwen2VLVideoProcessor", _QWEN2)
        settings = settings_of(name, processor, COMMON_DEFAULTS | defaults)
        size = dict(settings["size"])
        if not is_qwen3:  # old names, which only the older processor knows
            size["shortest_edge"] = processor.get("min_pixels") or size.get("shortest_edge") or size["min_pixels"]
            size["longest_edge"] = processor.get("max_pixels") or size.get("longest_edge") or size["max_pixels"]
        self.settings = settings | {"size": size, "kind": name}
        self._is_qwen3 = is_qwen3
        self._table = normalization_table(settings)
        self._patch: int = settings["patch_size"]
        self._merge: int = settings["merge_size"]
        self._frames: int = settings["temporal_patch_size"]
        self._limits = int(size["shortest_edge"]), int(size["longest_edge"])
        self._max_frames = min(int(settings["max_frames"]), MAX_SAMPLED_FRAMES)

    def rule(self, fps: float | None, num_frames: int | None) -> SamplingRule:
        """See `VideoPreparer`."""
        if num_frames is not None and num_frames > self._max_frames:
            raise MediaTooLargeError(
                f"{num_frames} frames are asked for; the model takes {self._max_frames} of a video"
            )
        if fps is None and num_frames is None:
            fps, num_frames = self.settings["fps"], self.settings["num_frames"]
        return SamplingRule(
            fps=fps if num_frames is None else None,
            num_frames=num_frames,
            min_frames=int(self.settings["min_frames"]),
            max_frames=self._max_frames,
            patch_frames=self._frames,
            spread="ends" if self._is_qwen3 else "steps",
        )

    def plan(self, width: int, height: int, sample: VideoSample) -> ImagePlan:
        """See `VideoPreparer`."""
        number = len(sample.indices)
        size = self._resized(width, height, number)
        columns, rows = size[0] // self._patch, size[1] // self._patch
        num_grids = math.ceil(number / self._frames)
        num_embeddings = num_grids * rows * columns // self._merge**2
        fps = sample.fps or FPS_UNKNOWN
        return ImagePlan(
            width=width,
            height=height,
            num_embeddings=num_embeddings,
            num_prompt_tokens=num_embeddings,
            grid_thw=(num_grids, rows, columns),
            merge_size=self._merge,
            patch_frames=self._frames,
            resized=size,
            kind="video",
            second_per_grid_s=self._frames / (number / sample.num_frames * fps),
            grid_times_s=self._times_s(sample.indices, fps),
        )

    def prepare(self, frames: Iterable[Pixels], plan: ImagePlan) -> PreparedImage:
        """See `VideoPreparer`."""
        assert plan.grid_thw is not None, "a video has a grid"
        num_grids, rows, columns = plan.grid_thw
        patches = new_output((num_grids, rows * columns, 3, self._frames, self._patch**2))
        number = 0
        for pixels in frames:
            grid, place = divmod(number, self._frames)
            patches[grid, :, :, place] = kernels().patches(
                np.ascontiguousarray(pixels), plan.resized, int(self.settings["resample"]), self._patch, self._merge
            )
            number += 1
        for missing in range(number, num_grids * self._frames):  # the last frame stands in for what is not there
            patches[-1, :, :, missing % self._frames] = patches[-1, :, :, (number - 1) % self._frames]
        arrays: dict[str, NDArray[Any]] = {
            "pixel_values": patches.reshape(-1, 3, self._frames, self._patch**2),
            "table": self._table,
        }
        return PreparedImage(plan, arrays)

    def frames(self, prepared: PreparedImage, number: int) -> Frames:
        """See `VideoPreparer`."""
        plan = prepared.plan
        assert plan.grid_thw is not None, "a video has a grid"
        num_grids, rows, columns = plan.grid_thw
        merge, patch = self._merge, self._patch
        patches: NDArray[Any] = prepared.arrays["pixel_values"]
        cut = patches.reshape(
            num_grids, rows // merge, columns // merge, merge, merge, 3, self._frames, patch, patch
        )  # as `prepare` lays them out
        whole = cut.transpose(0, 6, 1, 3, 7, 2, 4, 8, 5).reshape(-1, rows * patch, columns * patch, 3)
        return np.ascontiguousarray(whole[:number])

    def _times_s(self, indices: tuple[int, ...], fps: float) -> tuple[float, ...]:
        """The middle between the first and the last frame of each frame of patches."""
        times = [index / fps for index in indices]
        times += times[-1:] * (-len(times) % self._frames)
        return tuple((times[at] + times[at + self._frames - 1]) / 2 for at in range(0, len(times), self._frames))

    def _resized(self, width: int, height: int, number: int) -> tuple[int, int]:
        factor, (least, most) = self._patch * self._merge, self._limits
        cap = int(self.settings["max_video_tokens"]) * factor**2 if self.settings["cap_pixels_per_frame"] else None
        if not self._is_qwen3:
            if cap is not None:
                most = max(min(most, int(cap * 0.9) * self._frames // number), int(least * 1.05))
            return smart_resize(width, height, factor, least, most)
        number = max(number, self._frames)  # of fewer frames than a patch spans the last one is repeated
        if cap is not None:
            most = max(min(cap, most // number), int(least * 1.05)) * number
        return _resize_all(width, height, number, self._frames, factor, (least, most))


def _resize_all(
    width: int, height: int, number: int, patch_frames: int, factor: int, limits: tuple[int, int]
) -> tuple[int, int]:
    """Choose (width, height) of every frame, with the limits on the pixels of all frames together."""
    if min(width, height) < factor:
        scale = max(factor / height, factor / width)
        width, height = int(width * scale), int(height * scale)
    counted = round(number / patch_frames) * patch_frames
    return smart_resize(width, height, factor, *limits, number=number, counted=counted)
