"""What transformers computes for an image ranker, one pair at a time, in float32.

Text encoder, vision tower, tokenizer and image processor are transformers' own; the adapter, which is Chiasm's, is the
module that such a model is trained with.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoImageProcessor, AutoTokenizer

from chiasm.engines.pooling.ranker_loading import ImageRanker
from chiasm.pooling import heads
from chiasm.pooling.model_files import PoolingModel
from chiasm.pooling.ranker_config import read_ranker_config

Array = NDArray[np.float32]
Pair = tuple[str, str, Image.Image]
"""A query, what is said of the picture, and the picture."""
_PADDED_BATCH = 16


class RankerReference:
    """The module as it is trained, with transformers' attention."""

    labels: tuple[str, ...] = ()

    def __init__(self, directory: Path, model: PoolingModel) -> None:
        """Load them."""
        config = read_ranker_config(directory)
        tokenizers: Any = AutoTokenizer
        processors: Any = AutoImageProcessor
        self._model = model
        self._tokenizer: Any = tokenizers.from_pretrained(directory, local_files_only=True)
        self._marker = int(self._tokenizer.convert_tokens_to_ids(config.marker_token))
        self._processor: Any = processors.from_pretrained(directory, local_files_only=True, backend="pil")
        self._network = ImageRanker(config).eval()
        self._network.load_state_dict(load_file(directory / "model.safetensors"))

    @property
    def num_picture_tokens(self) -> int:
        """What a picture counts for beside a text: its patches."""
        config = self._network.vision_model.config
        return int(config.image_size // config.patch_size) ** 2

    def token_ids(self, pair: Pair) -> list[int]:
        """Of a pair, cut to what the model takes, the marker in front of the second text."""
        return self._encoded(pair)[0]

    @torch.inference_mode()
    def values(self, pairs: Sequence[Pair], *, is_padded: bool = False) -> list[Array]:
        """Scores, computed one by one, or with texts padded in batches of neighbours."""
        size = _PADDED_BATCH if is_padded else 1
        batches = [pairs[start : start + size] for start in range(0, len(pairs), size)]
        return [row for batch in batches for row in self._batch(batch)]

    def _batch(self, pairs: Sequence[Pair]) -> list[Array]:
        network = self._network
        encoded = [dict(zip(("input_ids", "token_type_ids"), self._encoded(one), strict=True)) for one in pairs]
        kept = [name for name in ("input_ids", "token_type_ids") if name in self._tokenizer.model_input_names]
        padded = self._tokenizer.pad([{name: one[name] for name in kept} for one in encoded], return_tensors="pt")
        hidden = network.text_model(**padded).last_hidden_state
        rows = []
        for states, mask, (_, _, picture) in zip(hidden, padded["attention_mask"].bool(), pairs, strict=True):
            pixels = self._processor(images=picture, return_tensors="pt")
            patches = network.feature_projection(network.vision_model(**pixels).last_hidden_state)
            rows.append(self._score(network.adapter(states[mask][None], patches)[0].numpy()))
        return rows

    def _score(self, logit: Array) -> Array:
        model = self._model
        return heads.activated(heads.calibrated(logit, model.mean, model.sigma), model.score_activation)

    def _encoded(self, pair: Pair) -> tuple[list[int], list[int]]:
        query, text, _ = pair
        encoded = self._tokenizer(  # of lists: an empty text by itself would be taken for none
            [query],
            [text],
            truncation="longest_first",
            max_length=self._model.max_tokens - 1,
            return_token_type_ids=True,
            split_special_tokens=True,  # what callers write is text
        )
        sequences = encoded.sequence_ids(0)
        place = sequences.index(1) if 1 in sequences else len(sequences) - 1
        ids, types = encoded["input_ids"][0], encoded["token_type_ids"][0]
        return [*ids[:place], self._marker, *ids[place:]], [*types[:place], types[place], *types[place:]]
