"""Tokens and pictures in, vectors and logits out: one forward pass over a packed batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from chiasm.engines.embedded.memory import module_bytes
from chiasm.engines.pooling.backbone import Computing
from chiasm.engines.pooling.batch import PackedBatch, Tokens, pack
from chiasm.engines.pooling.dual import Picture, RankedPicture
from chiasm.engines.pooling.loading import load_pooler
from chiasm.engines.pooling.native_text import NativeTextEncoder
from chiasm.engines.pooling.poolers import pooled_places, pooler, token_rows
from chiasm.pooling.model_files import PoolingModel

Array = NDArray[np.float32]
Rows = Literal["pooled", "tokens"]
"""What is wanted of an input: one row, or one per token."""


@dataclass(frozen=True)
class PoolingInput:
    """One input of a batch. Its first `num_shared` tokens are those of others, too, and computed once for all."""

    content: Tokens | Picture | RankedPicture
    rows: Rows = "pooled"
    num_shared: int = 0


def costs(inputs: Sequence[PoolingInput]) -> list[int]:
    """Tokens that each input costs; a start that they share is counted with the first."""
    found = [one.content.num_tokens - one.num_shared for one in inputs]
    if inputs:
        found[0] += inputs[0].num_shared
    return found


class PoolingRunner:
    """Owns the weights. Used by one thread at a time."""

    def __init__(
        self,
        directory: Path,
        model: PoolingModel,
        *,
        computing: Computing,
        step_token_id: int | None = None,
        answers: tuple[int, int] | None = None,
    ) -> None:
        """Load the model. `answers` are the token ids of yes and no. Raises `EngineStartError`."""
        self._model = model
        self._step_token_id = step_token_id
        self._loaded = load_pooler(directory, model, computing, answers)
        pools = model.pooling not in ("all", "step")
        self._pool = pooler(model.pooling) if pools else None
        self._native = self._loaded.backbone if isinstance(self._loaded.backbone, NativeTextEncoder) else None

    @property
    def width(self) -> int:
        """Of a row that comes out."""
        return self._loaded.width

    @property
    def weight_bytes(self) -> int:
        """What the weights of backbone, tower and adapter take."""
        loaded = self._loaded
        modules = [loaded.backbone, loaded.adapter, *(vars(loaded.images).values() if loaded.images else ())]
        native = self._native.num_bytes if self._native is not None else 0
        native += loaded.images.native_bytes if loaded.images is not None else 0
        return native + sum(module_bytes(one) for one in modules if isinstance(one, torch.nn.Module))

    @property
    def similarity(self) -> tuple[float, float] | None:
        """Scale and bias of the logit that the model makes of a text's and a picture's cosine; None without one."""
        return self._loaded.similarity

    @property
    def feature_shape(self) -> tuple[int, int]:
        """[rows, width] of what is made of one picture, which all have the same size here."""
        assert self._loaded.images is not None, "a model that takes pictures has a tower"
        return self._loaded.images.shape

    def close(self) -> None:
        """Give back threads and memory of the C code; nothing may be computed afterwards. Harmless when repeated."""
        if self._native is not None:
            self._native.close()
        if self._loaded.images is not None:
            self._loaded.images.close()

    @torch.inference_mode()
    def run(self, inputs: Sequence[PoolingInput], *, is_crowded: bool = False) -> list[Array]:
        """Compute inputs together; raw rows in order, float32: [width] or [tokens, width], of pictures [rows, width].

        They are laid end to end by length; no result depends on the company beyond rounding of matrix products.
        `is_crowded` says that others compute on the cores: pictures then take the caller's thread alone where C code
        encodes them, as threads that wait for each other would take turns with them.
        """
        found: list[Array] = [np.empty(0, np.float32)] * len(inputs)
        pictures = {index: one.content for index, one in enumerate(inputs) if isinstance(one.content, Picture)}
        if pictures:
            assert self._loaded.images is not None, "the worker has looked"
            encoded = self._loaded.images.rows(list(pictures.values()), is_alone=is_crowded)
            for index, rows in zip(pictures, encoded, strict=True):
                found[index] = _array(rows)
        texts = {index: one.content for index, one in enumerate(inputs) if isinstance(one.content, Tokens)}
        if texts:
            self._run_texts(inputs, texts, found)
        ranked = {index: one.content for index, one in enumerate(inputs) if isinstance(one.content, RankedPicture)}
        if ranked:
            self._run_ranked(ranked, found)
        return found

    def _run_ranked(self, ranked: dict[int, RankedPicture], found: list[Array]) -> None:
        """Each distinct text is read once; then texts of one length look at their pictures together."""
        assert self._loaded.adapter is not None, "the worker has looked"
        texts = sorted({one.tokens for one in ranked.values()}, key=lambda one: (one.num_tokens, one.ids))
        batch = pack(texts)
        hidden = dict(zip(texts, torch.split(self._hidden(batch).float(), batch.lengths), strict=True))
        order = sorted(ranked, key=lambda index: ranked[index].tokens.num_tokens)
        for _, group in groupby(order, key=lambda index: ranked[index].tokens.num_tokens):
            pairs = list(group)
            tokens = torch.stack([hidden[ranked[index].tokens] for index in pairs])
            patches = torch.from_numpy(np.stack([ranked[index].feature.rows for index in pairs]))
            for index, logit in zip(pairs, self._loaded.adapter(tokens, patches), strict=True):
                found[index] = _array(logit)

    def _run_texts(self, inputs: Sequence[PoolingInput], texts: dict[int, Tokens], found: list[Array]) -> None:
        shared = {index: inputs[index].num_shared for index in texts}

        def company(index: int) -> tuple[tuple[int, ...], int]:
            ids, count = texts[index].ids, shared[index]
            return ids[:count], len(ids) - count

        order = sorted(texts, key=company)
        batch = pack([texts[index] for index in order], [shared[index] for index in order])
        wanted = [inputs[index].rows for index in order]
        places = pooled_places(self._model.pooling, batch)
        if self._native is not None and places is not None and "tokens" not in wanted:
            for index, row in zip(order, _array(self._loaded.head(self._native.encode(batch, places))), strict=True):
                found[index] = row
            return
        hidden = self._hidden(batch)
        pooled = self._pooled(hidden, batch) if "pooled" in wanted else None
        tokens = self._tokens(hidden, batch) if "tokens" in wanted else None
        for place, (index, rows) in enumerate(zip(order, wanted, strict=True)):
            part = pooled[place] if pooled is not None and rows == "pooled" else None
            found[index] = part if part is not None else _one(tokens, place)

    def _hidden(self, batch: PackedBatch) -> torch.Tensor:
        """[tokens, hidden_size] after the backbone's last layer, the filler left out."""
        if self._native is not None:
            return self._native.encode(batch)
        extra = {}
        if self._loaded.has_type_ids:
            type_ids = batch.type_ids if batch.type_ids is not None else torch.zeros_like(batch.ids)
            extra["token_type_ids"] = type_ids[None]
        if self._model.is_causal:
            extra["use_cache"] = False  # type: ignore[assignment]
        out = self._loaded.backbone(
            input_ids=batch.ids[None],
            position_ids=(batch.positions + self._loaded.first_position)[None],
            runs=batch.runs,
            **extra,
        )
        hidden: torch.Tensor = out.last_hidden_state[0, : batch.ends[-1]]
        return hidden

    def _pooled(self, hidden: torch.Tensor, batch: PackedBatch) -> Array:
        assert self._pool is not None, "this model pools nothing; its tasks say so"
        return _array(self._loaded.head(self._pool(hidden, batch)))

    def _tokens(self, hidden: torch.Tensor, batch: PackedBatch) -> list[Array]:
        rows = token_rows(hidden, batch, self._step_token_id if self._model.pooling == "step" else None)
        if self._model.shape == "embedder":  # dense layers after pooling are for pooled rows
            return [_array(part) for part in rows]
        return [_array(self._loaded.head(part)) for part in rows]


def _one(tokens: list[Array] | None, place: int) -> Array:
    assert tokens is not None
    return tokens[place]


def _array(values: torch.Tensor) -> Array:
    """A copy that outlives the batch: rows of a large buffer would keep all of it."""
    found: Array = values.float().numpy().copy()
    return found
