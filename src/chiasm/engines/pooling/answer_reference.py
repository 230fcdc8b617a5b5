"""What transformers computes for a yes/no reranker by itself, one pair at a time, in float32.

Shares nothing with the runner but the model's files: the question is put together as Qwen3-Reranker's model card has
it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer

from chiasm.errors import UnsupportedModelError
from chiasm.pooling import heads
from chiasm.pooling.model_files import PoolingModel

Array = NDArray[np.float32]
_PADDED_BATCH = 16
_BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


class AnswerReference:
    """transformers' own language model and tokenizer."""

    labels: tuple[str, ...] = ()

    def __init__(self, directory: Path, model: PoolingModel, instruction: str, answers: tuple[str, str]) -> None:
        """Load them. `answers` are the words for yes and no."""
        self._model = model
        self._instruction = instruction
        tokenizers: Any = AutoTokenizer
        self._tokenizer: Any = tokenizers.from_pretrained(directory, local_files_only=True)
        self._answers = [self._ids(text)[0] for text in answers]
        self._before, self._after = self._ids(_BEFORE), self._ids(_AFTER)
        loader: Any = AutoModelForCausalLM
        self._network: Any = loader.from_pretrained(directory, dtype=torch.float32, local_files_only=True).eval()

    def token_ids(self, text: str | tuple[str, str]) -> list[int]:
        """Of a question, its document cut to what the model takes. Raises `UnsupportedModelError` for single texts."""
        if isinstance(text, str):
            raise UnsupportedModelError("The model reads pairs of query and document", hint="Put a tab between them")
        query, document = text
        asked = f"<Instruct>: {self._instruction}\n<Query>: {query}\n<Document>: {document}"
        body = self._ids(asked, split_special_tokens=True)  # what callers write is text
        room = self._model.max_tokens - len(self._before) - len(self._after)
        return [*self._before, *body[:room], *self._after]

    @torch.inference_mode()
    def values(self, texts: Sequence[str | tuple[str, str]], *, is_padded: bool = False) -> list[Array]:
        """Probabilities of yes, computed one by one, or in batches of neighbours that are padded on the left."""
        size = _PADDED_BATCH if is_padded else 1
        batches = [[self.token_ids(text) for text in texts[at : at + size]] for at in range(0, len(texts), size)]
        return [row for batch in batches for row in self._batch(batch)]

    def _batch(self, batch: list[list[int]]) -> list[Array]:
        longest = max(map(len, batch))
        ids = torch.tensor([[0] * (longest - len(one)) + one for one in batch])
        mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in batch])
        logits = self._network(input_ids=ids, attention_mask=mask, logits_to_keep=1).logits[:, -1]
        asked = (logits[:, self._answers[0]] - logits[:, self._answers[1]])[:, None].numpy()
        model = self._model
        return [
            heads.activated(heads.calibrated(row, model.mean, model.sigma), model.score_activation) for row in asked
        ]

    def _ids(self, text: str, **options: bool) -> list[int]:
        found: list[int] = self._tokenizer(text, add_special_tokens=False, **options)["input_ids"]
        return found
