"""What the engine needs to know of a model family.

A family object is built from a model directory without loading weights (so that prompts can be planned anywhere) and
loads them on demand. Text decoders of all families are Llama-shaped and run in `chiasm.engines.embedded.decoder`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from chiasm.media.prepare.base import ImagePlan, ImagePreparer, PreparedImage


@dataclass(frozen=True)
class PlacedImage:
    """A picture or video in a prompt: `plan` and the offset of its first expanded token.

    `runs` are the offsets, in the prompt, at which a video's runs of embedding rows begin; they are of one length.
    """

    plan: ImagePlan
    offset: int
    num_tokens: int
    runs: tuple[int, ...] = ()


@dataclass
class LoadedModel:
    """Weights in memory, on CPU, in the dtype asked for.

    Attributes:
        text: Hugging Face text model: `embed_tokens`, `layers`, `norm`, `rotary_emb`, `config`.
        lm_head: Output projection weight [vocab_size, hidden_size].
        vision: What `Family.encode` calls; None for text-only models.
    """

    text: nn.Module
    lm_head: torch.Tensor
    vision: Any | None


class Family(Protocol):
    """A model family. Instances hold configuration only; they are cheap and immutable."""

    name: ClassVar[str]
    model_types: ClassVar[tuple[str, ...]]

    def __init__(self, directory: Path, config: Any) -> None:
        """Take the transformers configuration of `directory`. Raises `EngineStartError` for variants not supported."""
        ...

    @property
    def preparer(self) -> ImagePreparer | None:
        """How pictures become arrays; None for text-only models."""
        ...

    @property
    def image_token_id(self) -> int | None:
        """The token that the chat template writes once per picture, and that each embedding row replaces."""
        ...

    @property
    def video_token_id(self) -> int | None:
        """As `image_token_id`, for videos; None for models that take none."""
        ...

    @property
    def num_deepstack_levels(self) -> int:
        """Extra embedding rows added after the first layers; embedding width is hidden_size x (1 + levels)."""
        ...

    @property
    def frequency_axes(self) -> NDArray[np.int64] | None:
        """For M-RoPE: which position axis (0 t, 1 h, 2 w) drives each rotary frequency [head_dim / 2]; None for 1-D."""
        ...

    def expand(self, plan: ImagePlan) -> list[int]:
        """Token ids that replace the one placeholder; those equal to it take embedding rows in order."""
        ...

    def positions(self, num_tokens: int, images: Sequence[PlacedImage]) -> tuple[NDArray[np.int64], int]:
        """Positions [axes, num_tokens] (axes is 3 for M-RoPE, else 1) and the position of the next token."""
        ...

    def load(self, dtype: torch.dtype) -> LoadedModel:
        """Read the weights. Raises `EngineStartError` naming what is missing."""
        ...

    def encode(self, model: LoadedModel, images: Sequence[PreparedImage]) -> list[torch.Tensor]:
        """Vision tower and projector over several pictures at once.

        Returns one tensor [num_embeddings, hidden_size x (1 + levels)] per picture, in order, in the model's dtype.
        A picture's result does not depend on its batch mates (beyond rounding of the backend's kernels).
        """
        ...
