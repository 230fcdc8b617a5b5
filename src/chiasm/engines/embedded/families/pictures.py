"""What all families with pictures share; a family overrides what is its own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from chiasm.engines.embedded.families.base import PlacedImage
from chiasm.engines.embedded.families.loading import read_weights
from chiasm.engines.embedded.families.text import require_llama_shaped
from chiasm.engines.embedded.mrope import linear_positions
from chiasm.errors import EngineStartError
from chiasm.media.prepare.base import ImagePlan, ImagePreparer, PreparedImage
from chiasm.media.prepare.reduced import ReducedPreparer
from chiasm.media.prepare.registry import preparer_for


class PictureFamily:
    """One placeholder becomes one run of picture tokens; positions count tokens; no deepstack."""

    model_class: ClassVar[Any]

    def __init__(self, directory: Path, config: Any) -> None:
        require_llama_shaped(config.text_config)
        preparer = self._make_preparer(directory)
        if preparer is None:
            raise EngineStartError(
                f"{directory.name} has no preprocessor_config.json", hint="copy it from the original model"
            )
        self._directory = directory
        self._config = config
        self._preparer: ImagePreparer = preparer

    def _make_preparer(self, directory: Path) -> ImagePreparer | None:
        return preparer_for(directory)

    @property
    def preparer(self) -> ImagePreparer:
        """See `Family`."""
        return self._preparer

    def reduce_pictures(self) -> None:
        """Prepare them fast instead of exactly, from here on; the revision says so."""
        self._preparer = ReducedPreparer(self._preparer)

    @property
    def image_token_id(self) -> int:
        """See `Family`."""
        return int(self._config.image_token_id)

    @property
    def video_token_id(self) -> int | None:
        """See `Family`."""
        return None

    @property
    def num_deepstack_levels(self) -> int:
        """See `Family`."""
        return 0

    @property
    def frequency_axes(self) -> NDArray[np.int64] | None:
        """See `Family`."""
        return None

    def expand(self, plan: ImagePlan) -> list[int]:
        """See `Family`."""
        return [self.image_token_id] * plan.num_embeddings

    def positions(self, num_tokens: int, images: Sequence[PlacedImage]) -> tuple[NDArray[np.int64], int]:
        """See `Family`."""
        return linear_positions(num_tokens)

    def _read(self, dtype: torch.dtype) -> Any:
        return read_weights(self.model_class, self._directory, self._config, dtype)


def pixel_values(images: Sequence[PreparedImage], vision: Any) -> torch.Tensor:
    """All pictures' `pixel_values` joined along the first dimension, where and as the vision model computes."""
    values = [torch.from_numpy(image.pixel_values()) for image in images]
    return torch.cat(values).to(vision.device, vision.dtype)
