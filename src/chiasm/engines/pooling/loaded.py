"""What loading a model directory comes to."""

from dataclasses import dataclass
from typing import Any

from chiasm.engines.pooling.dual import ImageTower
from chiasm.engines.pooling.heads import Head
from chiasm.engines.pooling.ranker import CrossModalAdapter


@dataclass
class LoadedPooler:
    """Weights in memory.

    Attributes:
        backbone: transformers' model without a head, or a `NativeTextEncoder` with its weights.
        head: Applied in float32 to pooled rows, or to token rows of models that pool none.
        width: Of what comes out of it.
        has_type_ids: Whether the backbone tells the texts of a pair apart.
        first_position: What position 0 of a text is called by the model's embeddings.
        images: The tower for pictures, where there is one.
        similarity: Scale and bias of the logit that a text's and a picture's cosine stand for, where there are any.
        adapter: What lets a text look at a picture, in an image ranker.
    """

    backbone: Any
    head: Head
    width: int
    has_type_ids: bool
    first_position: int
    images: ImageTower | None = None
    similarity: tuple[float, float] | None = None
    adapter: CrossModalAdapter | None = None
