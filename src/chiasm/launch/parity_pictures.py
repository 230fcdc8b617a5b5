"""Pictures to compare models on: made here, the same on every machine."""

import hashlib
import io

import numpy as np
from PIL import Image

from chiasm.protocol.media import InlineSource, MediaItem

_SIZES = ((64, 64), (300, 200), (31, 77), (640, 480), (224, 224))
"""(width, height): smaller and larger than what models see, wide and tall."""


def sample_pictures() -> list[MediaItem]:
    """Waves of colour with noise on them, as PNG."""
    return [_item(number, width, height) for number, (width, height) in enumerate(_SIZES)]


def open_picture(item: MediaItem) -> Image.Image:
    """The pixels of a sample picture."""
    assert isinstance(item.source, InlineSource)
    return Image.open(io.BytesIO(item.source.data)).convert("RGB")


def _item(number: int, width: int, height: int) -> MediaItem:
    rows, columns = np.mgrid[0:height, 0:width] / max(width, height)
    waves = [np.sin(6.3 * (number + 1) * (rows * a + columns * b)) for a, b in ((1, 0), (0, 1), (1, 1))]
    noise = np.random.default_rng(number).normal(0, 0.1, (height, width, 3))
    pixels = np.clip(127.5 * (1 + np.stack(waves, -1) + noise), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    data = file.getvalue()
    identity = hashlib.sha256(data).hexdigest()
    return MediaItem(identity=identity, format="png", width=width, height=height, source=InlineSource(data))
