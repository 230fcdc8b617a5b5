"""A preparer for `decoder_memory` that the decoder process imports without all that the benchmark needs."""

from typing import Any

from chiasm.media.prepare.base import ImagePlan, PreparedImage
from chiasm.media.prepare.output import new_output


class Writes:
    """Prepares nothing: writes so many bytes."""

    revision = "writes"

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes

    def least_size(self, width: int, height: int) -> None:
        """All of it."""

    def plan(self, width: int, height: int) -> ImagePlan:
        return ImagePlan(width=width, height=height, num_embeddings=1, num_prompt_tokens=1, resized=(width, height))

    def prepare(self, picture: Any, size: tuple[int, int] | None = None) -> PreparedImage:
        values = new_output((self.num_bytes,))
        values[...] = 1
        return PreparedImage(self.plan(1, 1), {"pixel_values": values})
