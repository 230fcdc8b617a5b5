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

from chiasm.errors import UnsupportedModelError

Table = NDArray[np.float32]
"""[3, 256]: the float for each value of each of the channels R, G, B."""


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


def resized(image: Image.Image, size: tuple[int, int], resample: int) -> Image.Image:
    """Resize to (width, height); a picture of that size already is returned as it is, as Pillow would copy it."""
    return image if image.size == size else image.resize(size, resample=Image.Resampling(resample))


def require_supported(kind: str, settings: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raise `UnsupportedModelError` when a setting has a value that is not implemented."""
    for name, value in expected.items():
        if settings.get(name, value) != value:
            raise UnsupportedModelError(
                f"{kind} with {name}={settings[name]!r} is not supported, only {value!r}",
                hint="correct preprocessor_config.json or serve the model with --engine vllm",
            )


def revision_of(kind: str, settings: Mapping[str, Any]) -> str:
    """Hash a preparer's kind, its parameters and Pillow's major version, whose resizing rounds differently in each."""
    text = json.dumps([kind, settings, PIL.__version__.split(".")[0]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
