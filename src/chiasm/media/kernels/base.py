"""What the loops over pixels promise. Two implementations give the same bits."""

from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
"""[height, width, 3], contiguous: red, green, blue of an upright picture."""

Table = NDArray[np.float32]
"""[3, 256]: the float for each value of each of the channels R, G, B."""


class Part(NamedTuple):
    """A rectangle of a picture, in pixels."""

    left: int
    top: int
    width: int
    height: int


class Resizing(NamedTuple):
    """What is wanted of a resize to `size`, (width, height); `resample` in Pillow's numbers."""

    size: tuple[int, int]
    wanted: Part
    resample: int


class StreamedJpeg(NamedTuple):
    """Pixels, resized while they were decoded, and what decoding took of the time."""

    pixels: Pixels
    decoding_s: float


def shape_of_patches(size: tuple[int, int], patch: int) -> tuple[int, int, int]:
    """Of a picture of (width, height), see `Kernels.patches`."""
    return size[0] // patch * (size[1] // patch), 3, patch**2


class Kernels(Protocol):
    """Thread-safe; the interpreter's lock is released while they work."""

    name: ClassVar[str]

    def resize(self, pixels: Pixels, size: tuple[int, int], resample: int) -> Pixels:
        """Resize to (width, height) as Pillow does; `resample` in its numbers. May return the same array."""
        ...

    def resize_part(self, pixels: Pixels, size: tuple[int, int], wanted: Part, resample: int) -> Pixels:
        """What is `wanted` of what `resize` gives, which must hold it; no more is computed."""
        ...

    def resize_jpeg(self, data: bytes, stored: tuple[int, int], resizing: Resizing) -> StreamedJpeg | None:
        """What `resize_part` makes of an everyday JPEG of `stored` (width, height), as it lies in the file, not turned.

        None where the file has something unusual or wrong, or where this is not implemented: decode it then, and see.
        """
        ...

    def patches(
        self,
        pixels: Pixels,
        size: tuple[int, int],
        resample: int,
        patch: int,
        merge: int = 1,
        out: NDArray[np.uint8] | None = None,
    ) -> NDArray[np.uint8]:
        """Resize, then cut into squares of `patch` pixels a side: [patches, 3, patch x patch].

        From left to right, then down; with `merge`, squares of merge x merge patches go in that order, and the patches
        inside of each. Both sides of `size` are multiples of patch x merge. `out` is where they go, contiguous.
        """
        ...

    def look_up(self, samples: NDArray[np.uint8], table: Table, frames: int = 1) -> NDArray[np.float32]:
        """[count, 3, plane] to [count, 3, frames, plane], all frames alike."""
        ...

    def turn(self, pixels: Pixels, orientation: int) -> Pixels:
        """Apply an EXIF orientation, 1 to 8."""
        ...

    def unfilter(self, rows: bytes, size: tuple[int, int], num_channels: int) -> Pixels | None:
        """Undo the filters of PNG rows, as inflated: each has a byte for its filter, then RGB or RGBA.

        None for transparent pixels and unknown filters, or where this is not implemented.
        """
        ...
