"""What transformers computes for a pooling model by itself, one padded batch or one text at a time, in float32.

Shares nothing with the runner but the model's files: own tokenizer calls, own attention, own heads.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch.nn import functional
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from chiasm.engines.pooling.aspect_sentiment import ARCHITECTURE
from chiasm.errors import UnsupportedModelError
from chiasm.media.prepare.model_files import read_json
from chiasm.pooling import heads
from chiasm.pooling.model_files import PoolingModel

Text = str | tuple[str, str]
Array = NDArray[np.float32]
_PADDED_BATCH = 16
_CLASSES: dict[str, Any] = {
    "embedder": AutoModel,
    "late_interaction": AutoModel,
    "sequence_classifier": AutoModelForSequenceClassification,
    "token_classifier": AutoModelForTokenClassification,
}


class HuggingFaceReference:
    """transformers' own model and tokenizer."""

    def __init__(self, directory: Path, model: PoolingModel) -> None:
        """Load them. Raises `UnsupportedModelError` for models whose use is no convention of transformers'."""
        if model.shape not in _CLASSES or model.pooling == "step" or model.takes_images:
            raise UnsupportedModelError(
                f"There is no reference for a {model.model_type} {model.shape} with pooling {model.pooling}",
                hint="Compare embedding and classifying models",
            )
        if ARCHITECTURE in ((read_json(directory / "config.json") or {}).get("architectures") or ()):
            raise UnsupportedModelError(f"transformers has no {ARCHITECTURE}", hint="Compare its backbone alone")
        self._directory = directory
        self._model = model
        self._tokenizer: Any = AutoTokenizer.from_pretrained(directory, local_files_only=True)
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self._network: Any = (
            _CLASSES[model.shape].from_pretrained(directory, dtype=torch.float32, local_files_only=True).eval()
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of classes as transformers has them."""
        names: dict[int, str] = self._network.config.id2label
        return tuple(names[index] for index in sorted(names))

    def token_ids(self, text: Text) -> list[int]:
        """Of a text or pair, cut to what the model takes."""
        found: list[int] = self._encoded([text])["input_ids"][0].tolist()
        return found

    @torch.inference_mode()
    def values(self, texts: Sequence[Text], *, is_padded: bool = False) -> list[Array]:
        """Finished numbers of each text, computed one by one, or in padded batches of neighbours."""
        size = _PADDED_BATCH if is_padded else 1
        batches = [list(texts[start : start + size]) for start in range(0, len(texts), size)]
        return [row for batch in batches for row in self._batch(batch)]

    def _batch(self, texts: list[Text]) -> list[Array]:
        encoded = self._encoded(texts)
        masks = encoded["attention_mask"].bool()
        out = self._network(**encoded)
        if self._model.shape == "sequence_classifier":
            return [self._classes(row.numpy()) for row in out.logits]
        if self._model.shape == "token_classifier":
            return [self._classes(row[mask].numpy()) for row, mask in zip(out.logits, masks, strict=True)]
        rows = out.last_hidden_state
        return [self._embedding(row[mask]) for row, mask in zip(rows, masks, strict=True)]

    def _encoded(self, texts: list[Text]) -> Any:
        firsts = [text if isinstance(text, str) else text[0] for text in texts]
        seconds = [text[1] for text in texts if not isinstance(text, str)] or None
        if self._model.is_lower_case:
            firsts = [text.lower() for text in firsts]
        return self._tokenizer(
            firsts, seconds, padding=True, truncation=True, max_length=self._model.max_tokens, return_tensors="pt"
        )

    def _classes(self, logits: Array) -> Array:
        model = self._model
        return heads.activated(heads.calibrated(logits, model.mean, model.sigma), model.activation)

    def _embedding(self, states: torch.Tensor) -> Array:
        if self._model.shape == "late_interaction":
            row = states
        else:
            row = {"cls": states[0], "last": states[-1], "mean": states.mean(0)}[self._model.pooling]
        for projection in self._model.projections:
            weights = load_file(self._directory / projection.folder / "model.safetensors")
            row = functional.linear(row, weights["linear.weight"].float(), weights.get("linear.bias"))
            if projection.activation != "identity":
                row = getattr(functional, projection.activation)(row)
        values: Array = row.numpy()
        return heads.normalized(values) if self._model.is_normalized else values
