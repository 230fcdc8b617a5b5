"""Arithmetic shared by all preparers: an 8-bit channel has 256 values, so normalising is a table look-up.

The table is computed once with the Hugging Face PIL processors' own sequence of roundings (rescale in double
precision, round to single, subtract and divide in single), so that looking values up gives their results bit for bit.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image

from chiasm.errors import MediaRefusedError, UnsupportedModelError
from chiasm.media.kernels.base import Pixels, Table
from chiasm.media.kernels.registry import kernels

MAX_ASPECT_RATIO = 200
CLIP_MEAN = [0.48145466, 0.4578275, 0.40821073]
CLIP_STD = [0.26862954, 0.26130258, 0.27577711]
HALF = [0.5, 0.5, 0.5]
COMMON_DEFAULTS: dict[str, Any] = {
    "do_convert_rgb": True,
    "do_resize": True,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
}
"""What every image processor assumes when its configuration is silent."""


def settings_of(kind: str, processor: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Pick a processor's settings from its configuration; absent and null ones take the default.

    Raises `UnsupportedModelError` when the processor does not resize: the model's picture sizes would be the user's.
    """
    written = ((name, processor.get(name)) for name in defaults)
    settings = dict(defaults) | {name: value for name, value in written if value is not None}
    require_supported(kind, settings, {"do_convert_rgb": True, "do_resize": True})
    return settings


def require_supported(kind: str, settings: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raise `UnsupportedModelError` when a setting has a value that is not implemented."""
    for name, value in expected.items():
        if settings.get(name, value) != value:
            raise UnsupportedModelError(
                f"the image processor {kind} with {name}={settings[name]!r} is not supported, only {value!r}",
                hint="correct preprocessor_config.json or serve the model with vLLM itself",
            )


def revision_of(kind: str, settings: Mapping[str, Any]) -> str:
    """Hash a preparer's kind, its parameters and Pillow's major version, whose resizing rounds differently in each."""
    text = json.dumps([kind, settings, PIL.__version__.split(".")[0]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def normalization_table(settings: Mapping[str, Any]) -> Table:
    """Build the table for a processor's `do_rescale`, `rescale_factor`, `do_normalize`, `image_mean`, `image_std`."""
    values = np.arange(256, dtype=np.float64)
    if settings["do_rescale"]:
        values = values * settings["rescale_factor"]
    table = np.repeat(values.astype(np.float32)[None], 3, axis=0)
    if settings["do_normalize"]:
        mean, std = (_per_channel(settings[name]) for name in ("image_mean", "image_std"))
        table = (table - mean) / std
    table.setflags(write=False)  # it is part of every picture that it prepares
    return table


def _per_channel(value: float | Sequence[float]) -> NDArray[np.float32]:
    channels = [value] * 3 if isinstance(value, int | float) else list(value)
    return np.array(channels, dtype=np.float32)[:, None]


def pixels_of(picture: Image.Image | Pixels) -> Pixels:
    """The pixels of an RGB picture, read-only."""
    if isinstance(picture, np.ndarray):
        return np.ascontiguousarray(picture)
    assert picture.mode == "RGB", f"preparers take RGB pictures, not {picture.mode}"
    return np.asarray(picture)


def size_of(pixels: Pixels) -> tuple[int, int]:
    """Width and height."""
    return pixels.shape[1], pixels.shape[0]


def squares(pixels: Pixels, size: tuple[int, int], resample: int, out: NDArray[np.uint8]) -> None:
    """Resize, then cut into `out`, [squares, 3, side, side] and contiguous, from left to right, then down."""
    kernels().patches(pixels, size, resample, out.shape[-1], out=out)


def filled(size: tuple[int, int], color: tuple[int, int, int], pixels: Pixels) -> Pixels:
    """A picture of this size and colour with another one in its middle."""
    out = np.empty((size[1], size[0], 3), np.uint8)
    out[...] = color
    top, left = (size[1] - pixels.shape[0]) // 2, (size[0] - pixels.shape[1]) // 2
    out[top : top + pixels.shape[0], left : left + pixels.shape[1]] = pixels
    return out


def require_aspect_ratio(width: int, height: int) -> None:
    """Raise `MediaRefusedError` when one side is over 200 times the other.

    Qwen's processor refuses these; resizing their shorter side to a fixed length, as CLIP does, would need gigabytes.
    """
    if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
        raise MediaRefusedError(
            f"a picture of {width} x {height} pixels has an aspect ratio above {MAX_ASPECT_RATIO}",
            hint="crop the picture or send it in several pieces",
        )
