"""What the loops over pixels promise. Two implementations give the same bits."""

import math
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


def shape_of_patches(size: tuple[int, int], patch: int) -> tuple[int, int, int]:
    """Of a picture of (width, height), see `Kernels.patches`."""
    return size[0] // patch * (size[1] // patch), 3, patch**2


_SUPPORT = {1: 3, 2: 1, 3: 2}
"""Of LANCZOS, BILINEAR, BICUBIC: how far they look, in pixels of the smaller picture."""


def part_before_resize(whole: tuple[int, int], size: tuple[int, int], wanted: Part, resample: int) -> Part:
    """The part of a picture of (width, height) `whole` that `wanted` depends on after a resize to `size`.

    A pixel or two more on each side, so that nobody has to round as Pillow does.
    """
    left, width = _span(whole[0], size[0], wanted.left, wanted.width, resample)
    top, height = _span(whole[1], size[1], wanted.top, wanted.height, resample)
    return Part(left, top, width, height)


def _span(whole: int, size: int, first: int, length: int, resample: int) -> tuple[int, int]:
    if whole == size:
        return first, length
    if resample not in _SUPPORT:
        return 0, whole
    scale = whole / size
    reach = _SUPPORT[resample] * max(scale, 1.0) + 2
    begin = max(0, math.floor((first + 0.5) * scale - reach))
    end = min(whole, math.ceil((first + length - 0.5) * scale + reach))
    return begin, end - begin


class Kernels(Protocol):
    """Thread-safe; the interpreter's lock is released while they work."""

    name: ClassVar[str]

    def resize(self, pixels: Pixels, size: tuple[int, int], resample: int) -> Pixels:
        """Resize to (width, height) as Pillow does; `resample` in its numbers. May return the same array."""
        ...

    def resize_part(
        self, pixels: Pixels, part: Part, whole: tuple[int, int], size: tuple[int, int], wanted: Part, resample: int
    ) -> Pixels:
        """As `resize` of a picture of which only a part is there: what is `wanted` of the result, to the bit.

        `part` is where `pixels` lie in a picture of (width, height) `whole`. It must hold all that `wanted` depends on,
        see `part_before_resize`.
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
