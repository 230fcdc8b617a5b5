"""What transformers computes for CLIP and SigLIP by itself, one input at a time, in float32.

Shares nothing with the runner but the model's files: own tokenizer, own image processor, own towers.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

from chiasm.errors import UnsupportedModelError
from chiasm.pooling import heads
from chiasm.pooling.model_files import PoolingModel

Array = NDArray[np.float32]
_PADDED_BATCH = 16


class DualReference:
    """transformers' own model, tokenizer and image processor."""

    labels: tuple[str, ...] = ()

    def __init__(self, directory: Path, model: PoolingModel) -> None:
        """Load them."""
        self._model = model
        tokenizers: Any = AutoTokenizer
        processors: Any = AutoImageProcessor
        self._tokenizer: Any = tokenizers.from_pretrained(directory, local_files_only=True)
        self._processor: Any = processors.from_pretrained(directory, local_files_only=True, backend="pil")
        self._network: Any = AutoModel.from_pretrained(directory, dtype=torch.float32, local_files_only=True).eval()

    def token_ids(self, text: str | tuple[str, str]) -> list[int]:
        """Of a text, cut to what the model takes and filled up as it was trained. Raises `UnsupportedModelError`."""
        found: list[int] = self._encoded([text], is_padded=False)["input_ids"][0].tolist()
        return found

    @torch.inference_mode()
    def values(self, texts: Sequence[str | tuple[str, str]], *, is_padded: bool = False) -> list[Array]:
        """Embeddings of texts, computed one by one, or in padded batches of neighbours."""
        size = _PADDED_BATCH if is_padded else 1
        batches = [list(texts[start : start + size]) for start in range(0, len(texts), size)]
        return [row for batch in batches for row in self._rows(self._encoded(batch, is_padded=is_padded))]

    @torch.inference_mode()
    def pictures(self, pictures: Sequence[Image.Image]) -> list[Array]:
        """Embeddings of pictures, computed one by one."""
        prepared = [self._processor(images=one, return_tensors="pt") for one in pictures]
        return [self._unit(self._network.get_image_features(**one).pooler_output[0]) for one in prepared]

    def _encoded(self, texts: Sequence[str | tuple[str, str]], *, is_padded: bool) -> Any:
        if not all(isinstance(one, str) for one in texts):
            raise UnsupportedModelError("The model reads no pairs of texts", hint="Send one text a line")
        fills = bool(self._model.pad_token)
        encoded = self._tokenizer(
            list(texts),
            padding="max_length" if fills else is_padded,
            truncation=True,
            max_length=self._model.max_tokens,
            return_tensors="pt",
        )
        return {"input_ids": encoded["input_ids"]} if fills else encoded  # SigLIP looks at what it is filled up with

    def _rows(self, encoded: Any) -> list[Array]:
        return [self._unit(row) for row in self._network.get_text_features(**encoded).pooler_output]

    def _unit(self, row: torch.Tensor) -> Array:
        values: Array = row.numpy()
        return heads.normalized(values) if self._model.is_normalized else values
