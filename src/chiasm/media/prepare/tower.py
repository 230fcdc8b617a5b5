"""What a LLaVA model's `config.json` says about its vision tower; enough to count embeddings without loading it."""

from collections.abc import Mapping
from typing import Any, Self

import msgspec

from chiasm.errors import UnsupportedModelError


class _Kind(msgspec.Struct, frozen=True):
    """A tower's class tokens, and the sizes that its configuration leaves out when they are the usual ones."""

    num_class_tokens: int
    image_size: int
    patch_size: int


_KINDS = {
    "clip_vision_model": _Kind(num_class_tokens=1, image_size=224, patch_size=32),
    "siglip_vision_model": _Kind(num_class_tokens=0, image_size=224, patch_size=16),
}


class VisionTower(msgspec.Struct, frozen=True):
    """A square of patches.

    Attributes:
        patches_per_side: Rows, and columns, of patches.
        num_embeddings: Rows handed to the language model: patches and class token, less the first row where the
            model's selection strategy drops it.
    """

    patches_per_side: int
    num_embeddings: int

    @classmethod
    def of(cls, model: Mapping[str, Any], *, pixels: int, default_strategy: str = "default") -> Self:
        """Read the tower for squares of `pixels`. Raises `UnsupportedModelError` when it is unknown or does not fit."""
        vision = model.get("vision_config") or {}
        name = vision.get("model_type", "clip_vision_model")
        kind = _KINDS.get(name)
        if kind is None:
            raise UnsupportedModelError(
                f"the vision tower {name!r} is not supported; known: {', '.join(_KINDS)}",
                hint="serve it by vLLM: chiasm serve --engine vllm --topology agg",
            )
        image_size = vision.get("image_size", kind.image_size)
        if image_size != pixels:
            raise UnsupportedModelError(
                f"prepared pictures have {pixels} pixels a side, the vision tower was made for {image_size}",
                hint="correct preprocessor_config.json",
            )
        per_side = pixels // vision.get("patch_size", kind.patch_size)
        drops_first = model.get("vision_feature_select_strategy", default_strategy) == "default"
        return cls(per_side, per_side**2 + kind.num_class_tokens - int(drops_first))
