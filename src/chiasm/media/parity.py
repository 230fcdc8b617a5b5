"""How far the fast preparation is from the exact one, on somebody's own pictures."""

import math
import time

import msgspec
import numpy as np

from chiasm.media.picture.decode import decode_announced
from chiasm.media.picture.header import read_header
from chiasm.media.prepare.base import ImagePreparer, PreparedImage
from chiasm.media.prepare.reduced import ReducedPreparer
from chiasm.settings import MediaSettings

_WHITE = 255


class PreparationParity(msgspec.Struct, frozen=True, kw_only=True):
    """Fast against exact preparation of one picture, in grey levels of what the model sees.

    `psnr_db` is None for equal pixels. Times are of a thread's CPU, decoding included.
    """

    file: str
    format: str
    width: int
    height: int
    resized: tuple[int, int]
    psnr_db: float | None
    max_error: int
    mean_error: float
    exact_cpu_s: float
    fast_cpu_s: float


def preparation_parity(file: str, data: bytes, exact: ImagePreparer, settings: MediaSettings) -> PreparationParity:
    """Prepare a picture both ways and compare. Raises `MediaError`."""
    header = read_header(data)
    (ours, exact_cpu_s), (theirs, fast_cpu_s) = (
        _prepared(data, (header.width, header.height), preparer, settings)
        for preparer in (exact, ReducedPreparer(exact))
    )
    errors = np.abs(_levels(ours) - _levels(theirs))
    square = float(np.square(errors, dtype=np.float64).mean())
    return PreparationParity(
        file=file,
        format=header.format,
        width=header.width,
        height=header.height,
        resized=ours.plan.resized,
        psnr_db=10 * math.log10(_WHITE**2 / square) if square else None,
        max_error=int(errors.max()),
        mean_error=float(errors.mean()),
        exact_cpu_s=exact_cpu_s,
        fast_cpu_s=fast_cpu_s,
    )


def _prepared(
    data: bytes, size: tuple[int, int], preparer: ImagePreparer, settings: MediaSettings
) -> tuple[PreparedImage, float]:
    started = time.thread_time()
    pixels = decode_announced(data, size, preparer.least_size(*size), settings)
    prepared = preparer.prepare(pixels, size)
    return prepared, time.thread_time() - started


def _levels(prepared: PreparedImage) -> "np.ndarray[tuple[int, ...], np.dtype[np.int16]]":
    return prepared.arrays["pixel_values"].astype(np.int16)
