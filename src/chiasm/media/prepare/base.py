"""What a preparer promises. One file per image processor; `registry.py` picks by the model's configuration."""

from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray
from PIL import Image


class ImagePlan(msgspec.Struct, frozen=True, kw_only=True):
    """All that follows from a picture's size alone, before a byte is decoded.

    Attributes:
        width, height: Pixels after EXIF rotation, as in the header.
        num_embeddings: Rows the encoder will produce.
        num_prompt_tokens: Tokens the picture takes in the prompt, row and border tokens included.
        grid_thw: Patches (frames, rows, columns) before merging, for models that have a grid.
        merge_size: Patches per embedding along one side.
        tiles: (rows, columns) of the picture's split, without the overview tile; (1, 1) when it is not split.
        resized: (width, height) that the model sees.
    """

    width: int
    height: int
    num_embeddings: int
    num_prompt_tokens: int
    grid_thw: tuple[int, int, int] | None = None
    merge_size: int = 1
    tiles: tuple[int, int] = (1, 1)
    resized: tuple[int, int]


class PreparedImage(msgspec.Struct, frozen=True):
    """Arrays for the encoder, named as the model's arguments and without a batch dimension."""

    plan: ImagePlan
    arrays: dict[str, NDArray[np.generic]]


class ImagePreparer(Protocol):
    """Pure and thread-safe."""

    @property
    def revision(self) -> str:
        """Short hash of everything that changes the output: kind, parameters, Pillow's major version."""
        ...

    def plan(self, width: int, height: int) -> ImagePlan:
        """Sizes and counts for a picture of this size. Raises `MediaRefusedError` when the model cannot take it."""
        ...

    def prepare(self, image: Image.Image) -> PreparedImage:
        """Resize, normalise and lay out an upright RGB picture, bit for bit as the Hugging Face processor does."""
        ...
