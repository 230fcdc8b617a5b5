"""Pictures made from a seed: unequal in every pixel, and about as hard to decode as photographs."""

import io
import random
from collections import deque
from collections.abc import Callable
from typing import Literal

import numpy as np
import simplejpeg  # type: ignore[import-untyped]  # ships no types
from PIL import Image, ImageChops

from chiasm.bench.workload.classes import RequestClass

Format = Literal["jpeg", "png", "webp"]

MAX_REUSED = 256
"""Of the pictures that were sent, so many of the last may be sent again."""

_QUALITY = 85
_GRAIN_BITS = 15
_MEDIA_TYPES = {"jpeg": "image/jpeg", "png": "image/png", "webp": "image/webp"}


def picture(seed: str, size: tuple[int, int], kind: Format) -> bytes:
    """An encoded RGB picture: soft shades of a few colours, with grain over them."""
    rng = np.random.default_rng(list(seed.encode()))
    shades = Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)).resize(size, Image.Resampling.BILINEAR)
    noise = np.frombuffer(rng.bytes(size[0] * size[1]), dtype=np.uint8).reshape(size[1], size[0]) & _GRAIN_BITS
    grain = Image.fromarray(noise)
    image = ImageChops.add(shades, Image.merge("RGB", (grain, grain, grain)), offset=-_GRAIN_BITS // 2)
    if kind == "jpeg":
        return bytes(simplejpeg.encode_jpeg(np.asarray(image), quality=_QUALITY))
    file = io.BytesIO()
    image.save(file, kind.upper(), **({"compress_level": 1} if kind == "png" else {"quality": _QUALITY}))
    return file.getvalue()


class PictureSource:
    """Pictures of one class; each is new, or with the class's probability one of the last that were sent."""

    def __init__(
        self, kind: RequestClass, seed: str, make: Callable[[str, tuple[int, int], Format], bytes] = picture
    ) -> None:
        self._kind = kind
        self._seed = f"{seed}:{kind.name}"
        self._make = make
        self._num_made = 0
        self._sent: deque[bytes] = deque(maxlen=MAX_REUSED if kind.image_reuse else 0)

    def next(self, rng: random.Random) -> tuple[str, bytes]:
        """The media type and the bytes of the next picture."""
        kind = self._kind
        if self._sent and rng.random() < kind.image_reuse:
            made = self._sent[rng.randrange(len(self._sent))]
        else:
            made = self._make(f"{self._seed}:{self._num_made}", kind.image_size, kind.image_format)
            self._num_made += 1
            self._sent.append(made)
        return _MEDIA_TYPES[kind.image_format], made
