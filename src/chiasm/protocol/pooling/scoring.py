"""Bodies of scores and ranks."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from chiasm.protocol.openai.fields import Accepted, FieldPolicy, Refused
from chiasm.protocol.pooling.fields import POOLING_POLICY, PoolingBody, PoolingFields
from chiasm.protocol.pooling.items import InputItem

Side = str | InputItem | Annotated[list[str | InputItem], Meta(min_length=1)]


class ScoreRequest(PoolingFields, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /score`: one text or picture against several, or as many against as many.

    The two sides have three pairs of names; exactly one pair is given.
    """

    text_1: Side | None = None
    text_2: Side | None = None
    queries: Side | None = None
    documents: Side | None = None
    data_1: Side | None = None
    data_2: Side | None = None
    max_tokens_per_doc: Annotated[int, Meta(ge=0)] | None = None


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """One pair's score; null when the model's number is none."""

    index: int
    object: Literal["score"] = "score"
    score: float | None


class ScoreList(PoolingBody, frozen=True, kw_only=True):
    """Answer of `POST /score`."""

    data: list[Score]


class Document(msgspec.Struct, frozen=True):
    """A document in the form of an object: a text, or a picture's URL. Its other fields are not read."""

    text: str | None = None
    image: str | None = None


class DocumentText(msgspec.Struct, frozen=True):
    """A document's text, given back."""

    text: str


class RerankRequest(PoolingFields, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /rerank`, in Jina's and Cohere's fields. `top_n` 0 or none returns all."""

    query: Annotated[str, Meta(min_length=1)] | InputItem
    documents: Annotated[list[str | Document], Meta(min_length=1)]
    top_n: Annotated[int, Meta(ge=0)] | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: Annotated[int, Meta(ge=0)] | None = None
    truncation: bool | None = None


SCORE_POLICY: FieldPolicy = {
    **POOLING_POLICY,
    "max_tokens_per_query": Refused((None, 0), "Shorten the query"),
    "instruction": Refused((None,), "The instruction is the server's (pooling.instruction)"),
    "chat_template_kwargs": Refused((None, {}), "The model's own template is used"),
}
RERANK_POLICY: FieldPolicy = {
    **SCORE_POLICY,
    "rank_fields": Refused((None, [], ["text"]), "Documents are ranked by their text"),
    "max_chunks_per_doc": Accepted(int | None, "documents are read in one piece; max_tokens_per_doc cuts them"),
    "relevant_spans": Refused((None,), "Spans are not computed"),
}


class RankedResult(msgspec.Struct, frozen=True, kw_only=True):
    """A document's place in the request and its score; null when the model's number is none. Pictures stay out."""

    index: int
    relevance_score: float | None
    document: DocumentText | UnsetType = UNSET


class RerankBody(PoolingBody, frozen=True, kw_only=True):
    """Answer of `POST /rerank`: best first."""

    results: list[RankedResult]
    meta: dict[str, Any]
