"""What each task needs computed, and how the rows that come back become its outputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from chiasm.engines.pooling.dual import Picture
from chiasm.engines.pooling.runner import PoolingInput, Rows
from chiasm.engines.pooling.tokens import Encoded, InputTokenizer
from chiasm.errors import RequestError
from chiasm.pooling import heads
from chiasm.pooling.model_files import PoolingModel
from chiasm.pooling.scoring import cosine, max_sim
from chiasm.protocol.pooling.work import ImageInput, PairInput, PoolInput, PoolOutput, PoolRequest, TextInput

Array = NDArray[np.float32]


Pictures = Mapping[str, Picture]
"""Prepared, by identity."""


class Reading(Protocol):
    """A request, tokenized. `inputs` are computed; `outputs` makes of their rows what was asked for."""

    @property
    def inputs(self) -> Sequence[PoolingInput]:
        """What is computed."""
        ...

    def outputs(self, rows: Sequence[Array]) -> tuple[PoolOutput, ...]:
        """One output per input of the request."""
        ...


@dataclass(frozen=True)
class _Distinct:
    """Inputs without repetition; `places[i]` is where input i of the request is among them."""

    inputs: list[PoolingInput]
    places: list[int]


def _distinct(encoded: Sequence[Encoded], rows: Rows) -> _Distinct:
    seen: dict[PoolingInput, int] = {}
    places = [seen.setdefault(PoolingInput(one.content, rows), len(seen)) for one in encoded]
    return _Distinct(list(seen), places)


class DirectReading:
    """Tasks whose inputs are the model's inputs: embed, classify, their token forms, and scores of cross-encoders."""

    def __init__(
        self, request: PoolRequest, model: PoolingModel, tokenizer: InputTokenizer, pictures: Pictures
    ) -> None:
        self._request = request
        self._model = model
        self._encoded = _encoded(request, tokenizer, pictures)
        rows: Rows = "tokens" if request.task.startswith("token_") else "pooled"
        self._distinct = _distinct(self._encoded, rows)
        self.inputs = self._distinct.inputs

    def outputs(self, rows: Sequence[Array]) -> tuple[PoolOutput, ...]:
        """See `Reading`."""
        values = [self._finished(row) for row in rows]
        return tuple(
            PoolOutput(
                values=values[place],
                num_tokens=one.content.num_tokens,
                is_truncated=one.is_truncated,
                places=one.places,
            )
            for place, one in zip(self._distinct.places, self._encoded, strict=True)
        )

    def _finished(self, row: Array) -> Array:
        task, params, model = self._request.task, self._request.params, self._model
        if task in ("embed", "token_embed"):
            row = heads.cut(row, params.dimensions)
            is_normalized = model.is_normalized if params.normalize is None else params.normalize
            return heads.normalized(row) if is_normalized else row
        row = heads.calibrated(row, model.mean, model.sigma)
        if params.activate is False:
            return row
        return heads.activated(row, model.score_activation if task == "score" else model.activation)


class EmbeddingScores:
    """Scores from embeddings of the two sides, each distinct text embedded once."""

    def __init__(self, request: PoolRequest, model: PoolingModel, tokenizer: InputTokenizer) -> None:
        is_late = model.shape == "late_interaction"
        self._score = max_sim if is_late else cosine
        queries, documents = zip(*(_sides(one) for one in request.inputs), strict=True)
        self._queries = _encoded_side(queries, request, tokenizer)
        self._documents = _encoded_side(documents, request, tokenizer)
        self._distinct = _distinct([*self._queries, *self._documents], "tokens" if is_late else "pooled")
        self.inputs = self._distinct.inputs

    def outputs(self, rows: Sequence[Array]) -> tuple[PoolOutput, ...]:
        """See `Reading`."""
        units = [heads.normalized(row) for row in rows]
        count = len(self._queries)
        places = self._distinct.places
        return tuple(
            PoolOutput(
                values=np.array([self._score(units[places[index]], units[places[count + index]])], np.float32),
                num_tokens=query.content.num_tokens + document.content.num_tokens,
                is_truncated=query.is_truncated or document.is_truncated,
            )
            for index, (query, document) in enumerate(zip(self._queries, self._documents, strict=True))
        )


def read(request: PoolRequest, model: PoolingModel, tokenizer: InputTokenizer, pictures: Pictures) -> Reading:
    """Tokenize a request with prepared pictures. Raises `RequestError` with the position of what cannot be taken."""
    if request.task == "score" and model.shape in ("embedder", "late_interaction"):
        return EmbeddingScores(request, model, tokenizer)
    return DirectReading(request, model, tokenizer, pictures)


def _encoded(request: PoolRequest, tokenizer: InputTokenizer, pictures: Pictures) -> list[Encoded]:
    """Every input's content, in order. An error names the input's place in the request."""
    places = [place for place, one in enumerate(request.inputs) if not isinstance(one, ImageInput)]
    try:
        texts = iter(tokenizer.encode([request.inputs[place] for place in places], request.params))
    except RequestError as error:
        if error.item is not None:
            error.item = places[error.item]
        raise
    return [
        Encoded(pictures[one.item.identity], is_truncated=False) if isinstance(one, ImageInput) else next(texts)
        for one in request.inputs
    ]


def _sides(one: PoolInput) -> tuple[TextInput, TextInput]:
    assert isinstance(one, PairInput), "the worker has looked"
    return TextInput(one.first, "query"), TextInput(one.second, "document")


def _encoded_side(side: Sequence[TextInput], request: PoolRequest, tokenizer: InputTokenizer) -> list[Encoded]:
    """Tokenize one side, each text once. An error names the first place where its text stands."""
    unique = list(dict.fromkeys(side))
    params = request.params
    if unique[0].prompt != "document":
        params = msgspec.structs.replace(params, max_document_tokens=None)
    try:
        found = dict(zip(unique, tokenizer.encode(unique, params), strict=True))
    except RequestError as error:
        if error.item is not None:
            error.item = side.index(unique[error.item])
        raise
    return [found[text] for text in side]
