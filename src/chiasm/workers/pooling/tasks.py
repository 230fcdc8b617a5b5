"""What each task needs computed, and how the rows that come back become its outputs."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from chiasm.engines.pooling.batch import Tokens
from chiasm.engines.pooling.dual import Feature, RankedPicture
from chiasm.engines.pooling.runner import PoolingInput, Rows
from chiasm.engines.pooling.tokens import Content, Encoded, InputTokenizer
from chiasm.errors import MediaError, RequestError
from chiasm.pooling import heads
from chiasm.pooling.model_files import PoolingModel
from chiasm.pooling.scoring import cosine, max_sim
from chiasm.protocol.media import MediaItem
from chiasm.protocol.pooling.work import (
    ImageInput,
    MediaPairInput,
    PairInput,
    PoolInput,
    PoolOutput,
    PoolRequest,
    TextInput,
    media_of,
)

Array = NDArray[np.float32]

_MIN_SHARED_TOKENS = 16
Features = Mapping[str, Feature]
"""Of pictures, by identity."""


class Similarity(msgspec.Struct, frozen=True):
    """What a dual encoder makes of the cosine between a text and a picture: a logit, and its sigmoid."""

    scale: float
    bias: float

    def score(self, cosine_value: np.float32, *, is_active: bool) -> np.float32:
        """See the class; without activation the logit."""
        logits = np.array([cosine_value * np.float32(self.scale) + np.float32(self.bias)], np.float32)
        return np.float32((heads.activated(logits, "sigmoid") if is_active else logits)[0])


class Reading(Protocol):
    """A request, tokenized. `inputs` are computed; `outputs` makes of their rows what was asked for."""

    @property
    def inputs(self) -> Sequence[PoolingInput]:
        """What is computed."""
        ...

    def outputs(self, rows: Sequence[Array]) -> tuple[PoolOutput, ...]:
        """One output per input of the request."""
        ...


class _Distinct:
    """Contents without repetition. `places[i]` is where content i of the request is among them.

    Features of pictures are known already; `inputs` are the others.
    """

    def __init__(self, encoded: Sequence[Encoded], rows: Rows, *, shares_start: bool = False) -> None:
        """Take contents; with `shares_start`, for causal models of which the last row counts, find their start."""
        seen: dict[Content, int] = {}
        self.places = [seen.setdefault(one.content, len(seen)) for one in encoded]
        self._contents = list(seen)
        computed = [one for one in seen if not isinstance(one, Feature)]
        num_shared = _num_shared(computed) if shares_start else 0
        self.inputs = [PoolingInput(one, rows, num_shared) for one in computed]

    def rows(self, computed: Sequence[Array]) -> list[Array]:
        """Of every content, by place."""
        rest = iter(computed)
        return [one.rows[0] if isinstance(one, Feature) else next(rest) for one in self._contents]


def _num_shared(contents: Sequence[Content]) -> int:
    """Tokens that all begin with, one of each left over; 0 where computing them once would save next to nothing."""
    ids = [one.ids for one in contents if isinstance(one, Tokens)]
    if len(ids) < 2:
        return 0
    least, most = min(ids), max(ids)  # what these two begin with, all do
    count = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(least, most, strict=False)))
    count = min(count, min(map(len, ids)) - 1)
    return count if count >= _MIN_SHARED_TOKENS else 0


class DirectReading:
    """Tasks whose inputs are the model's inputs: embed, classify, their token forms, and scores of cross-encoders."""

    def __init__(
        self, request: PoolRequest, model: PoolingModel, tokenizer: InputTokenizer, features: Features
    ) -> None:
        self._request = request
        self._model = model
        self._encoded = _encoded(request, tokenizer, features)
        rows: Rows = "tokens" if request.task.startswith("token_") else "pooled"
        shares_start = model.is_causal and model.pooling == "last" and rows == "pooled"
        self._distinct = _Distinct(self._encoded, rows, shares_start=shares_start)
        self.inputs = self._distinct.inputs

    def outputs(self, rows: Sequence[Array]) -> tuple[PoolOutput, ...]:
        """See `Reading`."""
        values = [self._finished(row) for row in self._distinct.rows(rows)]
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
    """Scores from embeddings of the two sides, each distinct text or picture embedded once."""

    def __init__(
        self,
        request: PoolRequest,
        model: PoolingModel,
        tokenizer: InputTokenizer,
        features: Features,
        similarity: Similarity | None,
    ) -> None:
        is_late = model.shape == "late_interaction"
        self._score = max_sim if is_late else cosine
        self._similarity = similarity
        self._is_active = request.params.activate is not False
        queries, documents = zip(*(_sides(one) for one in request.inputs), strict=True)
        self._queries = _encoded_side(queries, request, tokenizer, features)
        self._documents = _encoded_side(documents, request, tokenizer, features)
        self._distinct = _Distinct([*self._queries, *self._documents], "tokens" if is_late else "pooled")
        self.inputs = self._distinct.inputs

    def outputs(self, rows: Sequence[Array]) -> tuple[PoolOutput, ...]:
        """See `Reading`."""
        units = [heads.normalized(row) for row in self._distinct.rows(rows)]
        count = len(self._queries)
        places = self._distinct.places
        return tuple(
            PoolOutput(
                values=np.array([self._scored(query, document, units[places[index]], units[places[count + index]])]),
                num_tokens=query.content.num_tokens + document.content.num_tokens,
                is_truncated=query.is_truncated or document.is_truncated,
            )
            for index, (query, document) in enumerate(zip(self._queries, self._documents, strict=True))
        )

    def _scored(self, query: Encoded, document: Encoded, first: Array, second: Array) -> np.float32:
        """Two texts, and two pictures, are compared by their cosine: a similarity was learned for one of each."""
        score = self._score(first, second)
        are_different = isinstance(query.content, Feature) != isinstance(document.content, Feature)
        if self._similarity is None or not are_different:
            return score
        return self._similarity.score(score, is_active=self._is_active)


class PartialReading:
    """A request of which some inputs cannot be used, for reasons that their outputs tell."""

    def __init__(self, failures: Mapping[int, MediaError], num_inputs: int, rest: Reading | None) -> None:
        self._failures = failures
        self._num_inputs = num_inputs
        self._rest = rest
        self.inputs: Sequence[PoolingInput] = () if rest is None else rest.inputs

    def outputs(self, rows: Sequence[Array]) -> tuple[PoolOutput, ...]:
        """See `Reading`."""
        rest = iter(() if self._rest is None else self._rest.outputs(rows))
        return tuple(
            PoolOutput(values=np.empty(0, np.float32), num_tokens=0, error=self._failures[place])
            if place in self._failures
            else next(rest)
            for place in range(self._num_inputs)
        )


class Reader:
    """How one model's requests are read. Thread-safe."""

    def __init__(self, model: PoolingModel, tokenizer: InputTokenizer, similarity: Similarity | None) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._similarity = similarity

    def read(self, request: PoolRequest, features: Features, failures: Mapping[str, MediaError]) -> Reading:
        """Tokenize a request. Raises `RequestError` with the position of what cannot be taken.

        `failures` are of pictures whose inputs become outputs with an error.
        """
        if not failures:
            return self._read(request, features)
        failed: dict[int, MediaError] = {}
        for place, one in enumerate(request.inputs):
            errors = [failures[item.identity] for item in media_of(one) if item.identity in failures]
            if errors:
                failed[place] = errors[0]
        left = [place for place in range(len(request.inputs)) if place not in failed]
        rest = msgspec.structs.replace(request, inputs=tuple(request.inputs[place] for place in left))
        with _places_of(left):
            reading = self._read(rest, features) if left else None
        return PartialReading(failed, len(request.inputs), reading)

    def _read(self, request: PoolRequest, features: Features) -> Reading:
        model = self._model
        if request.task == "score" and request.inputs and model.shape in ("embedder", "late_interaction"):
            return EmbeddingScores(request, model, self._tokenizer, features, self._similarity)
        return DirectReading(request, model, self._tokenizer, features)


def _encoded(request: PoolRequest, tokenizer: InputTokenizer, features: Features) -> list[Encoded]:
    """Every input's content, in order. An error names the input's place in the request."""
    places = [place for place, one in enumerate(request.inputs) if not isinstance(one, ImageInput)]
    with _places_of(places):
        texts = iter(tokenizer.encode([request.inputs[place] for place in places], request.params))
    return [
        Encoded(features[one.item.identity], is_truncated=False)
        if isinstance(one, ImageInput)
        else _with_picture(one, next(texts), features)
        for one in request.inputs
    ]


def _with_picture(one: PoolInput, text: Encoded, features: Features) -> Encoded:
    if not isinstance(one, MediaPairInput):
        return text
    assert isinstance(text.content, Tokens) and isinstance(one.second, MediaItem), "the worker has looked"
    content = RankedPicture(text.content, features[one.second.identity])
    return Encoded(content, is_truncated=text.is_truncated)


@contextmanager
def _places_of(places: Sequence[int]) -> Iterator[None]:
    """Let errors of the block name places in the request; they name positions in `places`."""
    try:
        yield
    except RequestError as error:
        if error.item is not None:
            error.item = places[error.item]
        raise


def _sides(one: PoolInput) -> tuple[TextInput | MediaItem, TextInput | MediaItem]:
    assert isinstance(one, PairInput | MediaPairInput), "the worker has looked"
    first, second = one.first, one.second
    return (
        TextInput(first, "query") if isinstance(first, str) else first,
        TextInput(second, "document") if isinstance(second, str) else second,
    )


def _encoded_side(
    side: Sequence[TextInput | MediaItem], request: PoolRequest, tokenizer: InputTokenizer, features: Features
) -> list[Encoded]:
    """Tokenize one side, each text once. An error names the first place where its text stands."""
    first: dict[TextInput, int] = {}
    for place, one in enumerate(side):
        if isinstance(one, TextInput):
            first.setdefault(one, place)
    params = request.params
    if any(one.prompt != "document" for one in first):
        params = msgspec.structs.replace(params, max_document_tokens=None)
    with _places_of(list(first.values())):
        found = dict(zip(first, tokenizer.encode(list(first), params), strict=True))
    return [
        found[one] if isinstance(one, TextInput) else Encoded(features[one.identity], is_truncated=False)
        for one in side
    ]
