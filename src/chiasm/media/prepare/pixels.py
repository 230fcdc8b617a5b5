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

Table = NDArray[np.float32]
"""[3, 256]: the float for each value of each of the channels R, G, B."""


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
    return table


def _per_channel(value: float | Sequence[float]) -> NDArray[np.float32]:
    channels = [value] * 3 if isinstance(value, int | float) else list(value)
    return np.array(channels, dtype=np.float32)[:, None]


def normalized(pixels: NDArray[np.uint8], table: Table) -> NDArray[np.float32]:
    """[height, width, 3] to [3, height, width] floats."""
    out = np.empty((3, *pixels.shape[:2]), np.float32)
    for channel in range(3):
        np.take(table[channel], pixels[..., channel], out=out[channel], mode="clip")
    return out


def pixels_of(image: Image.Image) -> NDArray[np.uint8]:
    """[height, width, 3], read-only, of an RGB picture."""
    assert image.mode == "RGB", f"preparers take RGB pictures, not {image.mode}"
    return np.asarray(image)


def resized(image: Image.Image, size: tuple[int, int], resample: int) -> Image.Image:
    """Resize to (width, height); a picture of that size already is returned as it is, as Pillow would copy it."""
    return image if image.size == size else image.resize(size, resample=Image.Resampling(resample))


def require_aspect_ratio(width: int, height: int) -> None:
    """Raise `MediaRefusedError` when one side is over 200 times the other.

    Qwen's processor refuses these; resizing their shorter side to a fixed length, as CLIP does, would need gigabytes.
    """
    if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
        raise MediaRefusedError(
            f"a picture of {width} x {height} pixels has an aspect ratio above {MAX_ASPECT_RATIO}",
            hint="crop the picture or send it in several pieces",
        )
