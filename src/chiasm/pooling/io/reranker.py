"""Ranks candidates for a query, all of them in one call of the engine."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from chiasm.errors import UnsupportedModelError
from chiasm.pooling.io.base import IOProcessor, ProcessorWork, RequestContext, checked
from chiasm.pooling.ranking import ranked, reported
from chiasm.protocol.pooling.work import PairInput, PoolingInfo, PoolOutput, PoolParams


class RerankData(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`data` of a request. A candidate with an id gets it back."""

    query: Annotated[str, Meta(min_length=1)]
    candidates: Annotated[list["str | Candidate"], Meta(min_length=1)]
    top_n: Annotated[int, Meta(ge=0)] = 0


class Candidate(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A text with the caller's own id."""

    text: str
    id: str | int | None = None


class Reranker(IOProcessor):
    """`{"query", "candidates", "top_n"}` to `{"results": [{"index", "id", "score"}]}`, best first."""

    name: ClassVar[str] = "reranker"

    def __init__(self, info: PoolingInfo) -> None:
        super().__init__(info)
        if "score" not in info.tasks or info.scorer == "image_ranker":
            raise UnsupportedModelError("The processor 'reranker' needs a model that scores pairs")

    def parse(self, data: object) -> RerankData:
        """See `IOProcessor`."""
        return checked(data, RerankData)

    def merge_params(self, params: PoolParams) -> PoolParams:
        """Candidates that are too long are cut, unless the caller has said how."""
        return params if params.truncate != "refuse" else msgspec.structs.replace(params, truncate="end")

    def pre(self, request: RerankData, context: RequestContext) -> ProcessorWork:
        """See `IOProcessor`."""
        texts = [one if isinstance(one, str) else one.text for one in request.candidates]
        ids = [None if isinstance(one, str) else one.id for one in request.candidates]
        context.state = (ids, request.top_n)
        return ProcessorWork("score", tuple(PairInput(request.query, text) for text in texts))

    def post(self, outputs: Sequence[PoolOutput], context: RequestContext) -> dict[str, Any]:
        """See `IOProcessor`."""
        ids, top_n = context.state
        scores = [float(one.values[0]) for one in outputs]
        order = ranked(scores, top_n or None)
        return {"results": [{"index": i, "id": ids[i], "score": reported(scores[i])} for i in order]}
