"""The loops over pixels by Pillow and numpy, where there was no C compiler."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from chiasm.media.kernels.base import Part, Pixels, Resizing, StreamedJpeg, Table

_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class PlainKernels:
    """See `Kernels`."""

    name: ClassVar[str] = "plain"

    def resize(self, pixels: Pixels, size: tuple[int, int], resample: int) -> Pixels:
        """See `Kernels`."""
        height, width = pixels.shape[:2]
        if (width, height) == size:
            return pixels
        return np.asarray(Image.fromarray(pixels).resize(size, resample=Image.Resampling(resample)))

    def resize_part(self, pixels: Pixels, size: tuple[int, int], wanted: Part, resample: int) -> Pixels:
        """See `Kernels`."""
        resized = self.resize(pixels, size, resample)
        return resized[wanted.top : wanted.top + wanted.height, wanted.left : wanted.left + wanted.width]

    def resize_jpeg(self, data: bytes, stored: tuple[int, int], resizing: Resizing) -> StreamedJpeg | None:
        """Leave it to decoding and `resize_part`."""
        return None

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
        rows, columns = size[1] // patch, size[0] // patch
        lines = self.resize(pixels, size, resample).reshape(
            rows // merge, merge, patch, columns // merge, merge, patch, 3
        )
        found = lines.transpose(0, 3, 1, 4, 6, 2, 5).reshape(rows * columns, 3, patch**2)
        if out is None:
            return found
        out[...] = found.reshape(out.shape)
        return out

    def look_up(self, samples: NDArray[np.uint8], table: Table, frames: int = 1) -> NDArray[np.float32]:
        """See `Kernels`."""
        count, channels, plane = samples.shape
        out = np.empty((count, channels, frames, plane), np.float32)
        for channel in range(channels):
            out[:, channel] = np.take(table[channel], samples[:, channel], mode="clip")[:, None]
        return out

    def turn(self, pixels: Pixels, orientation: int) -> Pixels:
        """See `Kernels`."""
        if orientation == 1:
            return pixels
        return np.asarray(Image.fromarray(pixels).transpose(_TRANSPOSE[orientation]))

    def unfilter(self, rows: bytes, size: tuple[int, int], num_channels: int) -> Pixels | None:
        """Leave it to Pillow's own decoder."""
        return None
