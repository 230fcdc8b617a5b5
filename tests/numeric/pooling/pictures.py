"""Pictures as the gateway hands them to workers."""

import io
from hashlib import sha256

import numpy as np
from PIL import Image

from chiasm.protocol.media import InlineSource, MediaItem
from chiasm.protocol.pooling.work import ImageInput


def png(width, height, seed=0):
    """Encoded noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def picture(data, size):
    """An input; `size` is its (width, height)."""
    width, height = size
    identity = sha256(data).hexdigest()
    return ImageInput(MediaItem(identity=identity, format="png", width=width, height=height, source=InlineSource(data)))
