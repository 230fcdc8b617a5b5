"""The fast preparation: JPEG is decoded at a fraction of its size where the model sees a much smaller one.

libjpeg-turbo leaves out the finest waves of each block, in eighths of the size. What remains is at least twice as wide
and high as the model needs, so that the resize after it still averages. Pixels differ slightly from the exact ones:
`chiasm media parity` says by how much on your pictures.
"""

import hashlib

from PIL import Image

from chiasm.media.kernels.base import Pixels
from chiasm.media.prepare.base import ImagePlan, ImagePreparer, PreparedImage, VideoPreparer

_OVERSAMPLING = 2
Size = tuple[int, int]


class ReducedPreparer:
    """A model's preparer with another revision, so that nothing it makes passes for exact."""

    def __init__(self, exact: ImagePreparer) -> None:
        self._exact = exact
        self._revision = hashlib.sha256(f"reduced {_OVERSAMPLING} {exact.revision}".encode()).hexdigest()[:16]

    @property
    def revision(self) -> str:
        """See `ImagePreparer`."""
        return self._revision

    @property
    def video(self) -> VideoPreparer | None:
        """How videos are prepared: exactly, as there is no fast way to decode them."""
        return getattr(self._exact, "video", None)

    def plan(self, width: int, height: int) -> ImagePlan:
        """See `ImagePreparer`."""
        return self._exact.plan(width, height)

    def least_size(self, width: int, height: int) -> Size:
        """See `ImagePreparer`."""
        least = self.plan(width, height).resized
        return least[0] * _OVERSAMPLING, least[1] * _OVERSAMPLING

    def prepare(self, picture: Image.Image | Pixels, size: Size | None = None) -> PreparedImage:
        """See `ImagePreparer`."""
        return self._exact.prepare(picture, size)
