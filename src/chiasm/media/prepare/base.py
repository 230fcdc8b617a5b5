"""What preparers promise. One file per image processor; `registry.py` picks by the model's configuration."""

import math
from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from chiasm.media.kernels.base import Pixels, Resizing
from chiasm.media.kernels.registry import kernels
from chiasm.media.video.packed import Frames
from chiasm.media.video.sampling import SamplingRule
from chiasm.protocol.media import MediaKind, VideoSample


class ImagePlan(msgspec.Struct, frozen=True, kw_only=True):
    """All that follows from a picture's size alone, or a video's and its sample, before a byte is decoded.

    Attributes:
        width, height: Pixels after EXIF rotation, as in the header.
        num_embeddings: Rows the encoder will produce.
        num_prompt_tokens: Tokens the picture takes in the prompt, row and border tokens included.
        grid_thw: Patches (frames, rows, columns) before merging, for models that have a grid.
        merge_size: Patches per embedding along one side.
        patch_frames: Frames of one patch, for models that have a grid; a picture fills all of them alike.
        tiles: (rows, columns) of the picture's split, without the overview tile; (1, 1) when it is not split.
        resized: (width, height) that the model sees.
        kind: Of the medium.
        second_per_grid_s: Of a video: how far apart its frames of patches are.
        grid_times_s: Of a video: when each frame of patches is shown, from the first frame of all.
    """

    width: int
    height: int
    num_embeddings: int
    num_prompt_tokens: int
    grid_thw: tuple[int, int, int] | None = None
    merge_size: int = 1
    patch_frames: int = 1
    tiles: tuple[int, int] = (1, 1)
    resized: tuple[int, int]
    kind: MediaKind = "image"
    second_per_grid_s: float | None = None
    grid_times_s: tuple[float, ...] = ()

    @property
    def num_tiles(self) -> int:
        """How many tiles the picture is cut into, the overview not counted; 0 when it is not split."""
        num_tiles = math.prod(self.tiles)
        return num_tiles if num_tiles > 1 else 0


class PreparedImage(msgspec.Struct, frozen=True):
    """Arrays for the encoder, named as the model's arguments and without a batch dimension.

    `pixel_values` are bytes where `table` says what float each of them stands for: an eighth of the memory, and of what
    goes from process to process. Patches are [patches, 3, side x side], of one frame: all are alike; those of a video
    [patches, 3, frames, side x side].
    """

    plan: ImagePlan
    arrays: dict[str, NDArray[np.generic]]

    def pixel_values(self) -> NDArray[np.float32]:
        """The floats that the model's own image processor gives, in its shape."""
        values: NDArray[Any] = self.arrays["pixel_values"]
        table: NDArray[Any] | None = self.arrays.get("table")
        if table is None:
            return values
        if self.plan.kind == "video":
            planes = values.reshape(len(values), 3, -1)
            return kernels().look_up(planes, table).reshape(len(values), -1)
        if self.plan.grid_thw is None:
            planes = values.reshape(-1, 3, values.shape[-1] * values.shape[-2])
            return kernels().look_up(planes, table).reshape(values.shape)
        return kernels().look_up(values, table, self.plan.patch_frames).reshape(len(values), -1)


class ImagePreparer(Protocol):
    """Pure and thread-safe."""

    @property
    def revision(self) -> str:
        """Short hash of everything that changes the output: kind, parameters, Pillow's major version."""
        ...

    def least_size(self, width: int, height: int) -> tuple[int, int] | None:
        """The (width, height) that suffices of a picture of this size; None for all of it."""
        ...

    def plan(self, width: int, height: int) -> ImagePlan:
        """Sizes and counts for a picture of this size. Raises `MediaRefusedError` when the model cannot take it."""
        ...

    def prepare(self, picture: Image.Image | Pixels, size: tuple[int, int] | None = None) -> PreparedImage:
        """Resize and lay out an upright RGB picture; its floats are the Hugging Face processor's, bit for bit.

        `size` is the original (width, height) of one that was decoded at a smaller size.
        """
        ...


@runtime_checkable
class ResizesFirst(Protocol):
    """A preparer to which most pictures come down to a resize, which may then happen while they are decoded."""

    def resizing(self, width: int, height: int) -> Resizing | None:
        """The resize of an upright picture of this size that all of it comes down to; None where it is not that."""
        ...

    def prepare_resized(self, pixels: Pixels, plan: ImagePlan) -> PreparedImage:
        """As `prepare`, from what `resizing` asks for."""
        ...


class VideoPreparer(Protocol):
    """How a model sees videos. Pure and thread-safe; the preparer of its pictures has it as `video`."""

    def rule(self, fps: float | None, num_frames: int | None) -> SamplingRule:
        """How frames are chosen when a request asks for so many, or, with neither given, as the model has it.

        Raises `MediaTooLargeError` for more frames than the model takes.
        """
        ...

    def plan(self, width: int, height: int, sample: VideoSample) -> ImagePlan:
        """Sizes, counts and times for sampled frames of this size. Raises `MediaRefusedError`, see `ImagePreparer`."""
        ...

    def prepare(self, frames: Iterable[Pixels], plan: ImagePlan) -> PreparedImage:
        """Resize and lay out upright RGB frames, one at a time."""
        ...

    def frames(self, prepared: PreparedImage, number: int) -> Frames:
        """The first `number` frames of a prepared video as the model sees them: resized, and nothing else."""
        ...
