"""Videos made from a seed: a window that moves over soft shades, as MP4 with H.264."""

import io
import random
import struct
from fractions import Fraction
from types import ModuleType

import numpy as np
from PIL import Image

from chiasm.bench.workload.classes import RequestClass
from chiasm.errors import MissingExtraError

MEDIA_TYPE = "video/mp4"
_FPS = 24
_STEP = 4


class VideoSource:
    """Videos of one class. All are one film, since making them takes long, in files that differ in unused bytes: their
    hashes are new to every cache.
    """

    def __init__(self, kind: RequestClass, seed: str) -> None:
        self._kind = kind
        self._seed = f"{seed}:{kind.name}:video"
        self._film = b""
        self._num_made = 0

    def next(self) -> bytes:
        """The next video. Raises `MissingExtraError` without PyAV."""
        if not self._film:
            self._film = film(self._seed, self._kind.video_size, self._kind.video_seconds)
        self._num_made += 1
        return self._film + _unused(f"{self._seed}:{self._num_made}")


def film(seed: str, size: tuple[int, int], seconds: float) -> bytes:
    """An MP4 file of 24 frames a second. Sides are even, as the codec wants."""
    av = _av()
    num_frames = max(1, round(_FPS * seconds))
    scene = _scene(seed, (size[0] + _STEP * num_frames, size[1]))
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as out:
        stream = out.add_stream("libx264", rate=_FPS)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        stream.codec_context.time_base = Fraction(1, _FPS)
        for number in range(num_frames):
            window = np.ascontiguousarray(scene[:, _STEP * number : _STEP * number + size[0]])
            out.mux(stream.encode(av.VideoFrame.from_ndarray(window, format="rgb24")))
        out.mux(stream.encode())
    return file.getvalue()


def _scene(seed: str, size: tuple[int, int]) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    rng = np.random.default_rng(list(seed.encode()))
    shades = Image.fromarray(rng.integers(0, 240, (9, 9 * max(1, size[0] // size[1]), 3), dtype=np.uint8))
    grain = rng.integers(0, 12, (size[1], size[0], 1), dtype=np.uint8)
    return np.asarray(shades.resize(size, Image.Resampling.BILINEAR)) + grain


def _unused(name: str) -> bytes:
    """A box of MP4 that readers skip."""
    filling = random.Random(name).randbytes(16)  # noqa: S311 - reproducible, not secret
    return struct.pack(">I4s", 8 + len(filling), b"free") + filling


def _av() -> ModuleType:
    try:
        import av  # noqa: PLC0415 - an extra
    except ImportError:
        raise MissingExtraError("Making videos needs PyAV", hint="Install it: pip install 'chiasm[video]'") from None
    return av
