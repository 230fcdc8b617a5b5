"""Aspect-based sentiment: what a review says about each aspect, and where it says so."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from msgspec import Meta

from chiasm.errors import UnsupportedModelError
from chiasm.pooling.io.base import IOProcessor, ProcessorWork, RequestContext, checked
from chiasm.protocol.pooling.work import PairInput, PoolingInfo, PoolOutput, PoolParams


class Review(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A review and the aspects that it is asked about."""

    review: Annotated[str, Meta(min_length=1)]
    aspects: Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1)]


class AbsaData(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`data` of a request."""

    reviews: Annotated[list[Review], Meta(min_length=1)]


class AspectSentiment(IOProcessor):
    """`{"reviews": [{"review", "aspects"}]}` to labels and spans, in the order of the request.

    Every (review, aspect) is one pair for the model. A classifier of pairs gives the label, and the span is where the
    review names the aspect. A classifier of tokens (labels 'O', 'B-x', 'I-x') gives both: the span is the run of review
    tokens that it is surest of. Spans are characters of the review; null where there is none.
    """

    name: ClassVar[str] = "absa"

    def __init__(self, info: PoolingInfo) -> None:
        super().__init__(info)
        if not {"classify", "token_classify"} & set(info.tasks):
            raise UnsupportedModelError("The processor 'absa' needs a classifier of pairs or of tokens")

    def parse(self, data: object) -> AbsaData:
        """See `IOProcessor`."""
        return checked(data, AbsaData)

    def merge_params(self, params: PoolParams) -> PoolParams:
        """Spans need to know where tokens stand."""
        return msgspec.structs.replace(params, with_offsets="classify" not in self.info.tasks)

    def pre(self, request: AbsaData, context: RequestContext) -> ProcessorWork:
        """See `IOProcessor`."""
        pairs = [(one.review, aspect) for one in request.reviews for aspect in one.aspects]
        context.state = (pairs, [len(one.aspects) for one in request.reviews])
        inputs = tuple(PairInput(review, aspect) for review, aspect in pairs)
        return ProcessorWork("classify" if "classify" in self.info.tasks else "token_classify", inputs)

    def post(self, outputs: Sequence[PoolOutput], context: RequestContext) -> dict[str, Any]:
        """See `IOProcessor`."""
        pairs, counts = context.state
        judge = self._by_label if "classify" in self.info.tasks else self._by_tokens
        judged = zip(pairs, outputs, strict=True)
        found = iter([judge(review, aspect, output) for (review, aspect), output in judged])
        return {"reviews": [{"aspects": [next(found) for _ in range(count)]} for count in counts]}

    def _by_label(self, review: str, aspect: str, output: PoolOutput) -> dict[str, Any]:
        best = int(output.values.argmax())
        at = review.casefold().find(aspect.casefold())
        is_exact = at >= 0 and review[at : at + len(aspect)].casefold() == aspect.casefold()
        span = [at, at + len(aspect)] if is_exact else None
        return {"aspect": aspect, "label": self.info.labels[best], "score": float(output.values[best]), "span": span}

    def _by_tokens(self, review: str, aspect: str, output: PoolOutput) -> dict[str, Any]:
        rows = [index for index, place in enumerate(output.places) if place.text == 0]
        best = output.values[rows].argmax(axis=1) if rows else np.empty(0, np.int64)
        runs = _runs([self.info.labels[label] for label in best])
        if not runs:
            return {"aspect": aspect, "label": None, "score": None, "span": None}
        scored = [(float(output.values[rows[a:b], best[a:b]].mean()), a, b, kind) for a, b, kind in runs]
        score, first, last, kind = max(scored, key=lambda one: (one[0], -one[1]))
        span = [output.places[rows[first]].start, output.places[rows[last - 1]].end]
        return {"aspect": aspect, "label": kind, "score": score, "span": span}


def _runs(labels: Sequence[str]) -> list[tuple[int, int, str]]:
    """(first, end, kind) of stretches of the same kind; 'B-' begins a new one, 'O' belongs to none."""
    runs: list[tuple[int, int, str]] = []
    for index, label in enumerate(labels):
        begin, dash, kind = label.partition("-")
        kind = kind if dash else label
        if label == "O":
            continue
        goes_on = bool(runs) and runs[-1][1] == index and runs[-1][2] == kind and begin != "B"
        if goes_on:
            runs[-1] = (runs[-1][0], index + 1, kind)
        else:
            runs.append((index, index + 1, kind))
    return runs
