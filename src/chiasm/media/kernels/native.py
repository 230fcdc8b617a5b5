"""The loops over pixels in C."""

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import _imaging

from chiasm.media.kernels import _native
from chiasm.media.kernels.base import Part, Pixels, Resizing, StreamedJpeg, Table, shape_of_patches
from chiasm.media.kernels.plain import PlainKernels

_FILTERS = (1, 2, 3)
"""LANCZOS, BILINEAR, BICUBIC. The others are left to Pillow: no model asks for them."""

STREAMS_JPEG = _native.jpeg_library(_imaging.__file__)
"""Whether `resize_jpeg` is there. It decodes with the libjpeg-turbo that Pillow has, as the reference does."""


class NativeKernels(PlainKernels):
    """See `Kernels`. `passes` other than "auto" are for tests."""

    name: ClassVar[str] = "native"

    def __init__(self, passes: Literal["auto", "avx512", "avx2", "generic"] = "auto") -> None:
        self._passes = passes

    def resize(self, pixels: Pixels, size: tuple[int, int], resample: int) -> Pixels:
        """See `Kernels`."""
        height, width = pixels.shape[:2]
        if (width, height) == size or resample not in _FILTERS:
            return super().resize(pixels, size, resample)
        out = np.empty((size[1], size[0], 3), np.uint8)
        _native.resize(pixels, width, height, 3, *size, resample, out, 0, 1, self._passes)
        return out

    def resize_part(self, pixels: Pixels, size: tuple[int, int], wanted: Part, resample: int) -> Pixels:
        """See `Kernels`."""
        height, width = pixels.shape[:2]
        if resample not in _FILTERS or width == size[0] or height == size[1]:
            return super().resize_part(pixels, size, wanted, resample)
        out = np.empty((wanted.height, wanted.width, 3), np.uint8)
        _native.resize_part(pixels, width, height, size, wanted, resample, out, self._passes)
        return out

    def resize_jpeg(self, data: bytes, stored: tuple[int, int], resizing: Resizing) -> StreamedJpeg | None:
        """See `Kernels`."""
        size, wanted, resample = resizing
        if resample not in _FILTERS or stored[0] == size[0] or stored[1] == size[1]:
            return None
        out = np.empty((wanted.height, wanted.width, 3), np.uint8)
        seconds = _native.resize_jpeg(data, stored, size, wanted, resample, out, self._passes)
        return None if seconds is None else StreamedJpeg(out, seconds)

    def patches(
        self,
        pixels: Pixels,
        size: tuple[int, int],
        resample: int,
        patch: int,
        merge: int = 1,
        out: NDArray[np.uint8] | None = None,
    ) -> NDArray[np.uint8]:
        """See `Kernels`."""
        if resample not in _FILTERS:
            pixels = super().resize(pixels, size, resample)
            resample = _FILTERS[0]  # of a picture that has its size already
        height, width = pixels.shape[:2]
        if out is None:
            out = np.empty(shape_of_patches(size, patch), np.uint8)
        _native.resize(pixels, width, height, 3, *size, resample, out, patch, merge, self._passes)
        return out

    def look_up(self, samples: NDArray[np.uint8], table: Table, frames: int = 1) -> NDArray[np.float32]:
        """See `Kernels`."""
        count, _, plane = samples.shape
        out = np.empty((count, 3, frames, plane), np.float32)
        _native.look_up(samples, table, count, plane, frames, out, self._passes)
        return out

    def turn(self, pixels: Pixels, orientation: int) -> Pixels:
        """See `Kernels`."""
        if orientation == 1:
            return pixels
        height, width = pixels.shape[:2]
        out = np.empty((width, height, 3) if orientation >= 5 else (height, width, 3), np.uint8)
        _native.turn(pixels, width, height, 3, orientation, out)
        return out

    def unfilter(self, rows: bytes, size: tuple[int, int], num_channels: int) -> Pixels | None:
        """See `Kernels`."""
        out = np.empty((size[1], size[0], 3), np.uint8)
        try:
            _native.unfilter(rows, *size, num_channels, out)
        except ValueError:
            return None
        return out
