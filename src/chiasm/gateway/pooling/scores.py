"""`/score` and `/rerank`."""

from collections.abc import Sequence

import msgspec

from chiasm.errors import InvalidRequestError
from chiasm.gateway.pooling.call import Call, TaskCall
from chiasm.gateway.pooling.contents import Contents, Side, pairs
from chiasm.pooling.ranking import ranked, reported
from chiasm.protocol.openai.decode import decode_request
from chiasm.protocol.pooling.fields import NESTED_NAMES, Heading, PoolingFields
from chiasm.protocol.pooling.items import InputItem
from chiasm.protocol.pooling.scoring import (
    RERANK_POLICY,
    SCORE_POLICY,
    Document,
    DocumentText,
    RankedResult,
    RerankBody,
    RerankRequest,
    Score,
    ScoreList,
    ScoreRequest,
)
from chiasm.protocol.pooling.scoring import Side as WrittenSide
from chiasm.protocol.pooling.work import PoolingInfo, PoolOutput, PoolParams

_NAMES = (("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2"))


class ScoreDialect:
    """`POST /score`."""

    name = "score"
    id_prefix = "score"

    def call(self, body: bytes, info: PoolingInfo) -> Call:
        """See `Dialect`."""
        request = decode_request(body, ScoreRequest, SCORE_POLICY, NESTED_NAMES)
        contents = Contents()
        names, first, second = _sides(request)
        firsts, seconds = _as_list(first, f"/{names[0]}", contents), _as_list(second, f"/{names[1]}", contents)
        if len(firsts) not in (1, len(seconds)):
            raise InvalidRequestError(
                f"{len(firsts)} texts cannot be paired with {len(seconds)}",
                hint="Send one text against several, or as many on both sides",
                param=f"/{names[0]}",
            )
        firsts = firsts * len(seconds) if len(firsts) == 1 else firsts
        return TaskCall(
            model=request.model,
            options=request.chiasm,
            references=contents.references,
            task="score",
            inputs=pairs(list(zip(firsts, seconds, strict=True))),
            params=_params(request, request.max_tokens_per_doc),
            place=lambda item: f"/{names[1]}/{item}" if isinstance(second, list) else f"/{names[1]}",
            write=_write_scores,
        )


class RerankDialect:
    """`POST /rerank`. What `return_documents` means when it is not given differs: Cohere's second version has none."""

    name = "rerank"
    id_prefix = "rerank"

    def __init__(self, *, returns_documents: bool) -> None:
        self._returns_documents = returns_documents

    def call(self, body: bytes, info: PoolingInfo) -> Call:
        """See `Dialect`."""
        request = decode_request(body, RerankRequest, RERANK_POLICY, NESTED_NAMES)
        contents = Contents()
        query = _query(request.query, contents)
        documents = [_document(one, index, contents) for index, one in enumerate(request.documents)]
        with_texts = self._returns_documents if request.return_documents is None else request.return_documents
        params = _params(request, request.max_tokens_per_doc)
        if request.truncation is False:
            params = msgspec.structs.replace(params, truncate="refuse")

        def write(outputs: Sequence[PoolOutput], heading: Heading) -> RerankBody:
            scores = [float(one.values[0]) for one in outputs]
            results = [
                RankedResult(
                    index=index,
                    relevance_score=reported(scores[index]),
                    document=_given_back(documents[index]) if with_texts else msgspec.UNSET,
                )
                for index in ranked(scores, request.top_n or None)
            ]
            return RerankBody(**heading.shared(), results=results, meta=_meta(heading))  # type: ignore[arg-type]

        return TaskCall(
            model=request.model,
            options=request.chiasm,
            references=contents.references,
            task="score",
            inputs=pairs([(query, document) for document in documents]),
            params=params,
            place=lambda item: f"/documents/{item}",
            write=write,
        )


def _params(request: PoolingFields, max_tokens_per_doc: int | None) -> PoolParams:
    """Candidates come from a search whose texts nobody has measured: they are cut unless asked otherwise, and said."""
    params = request.params(cuts_by_itself=True)
    return msgspec.structs.replace(params, max_document_tokens=max_tokens_per_doc or None)


def _sides(request: ScoreRequest) -> tuple[tuple[str, str], WrittenSide, WrittenSide]:
    given = [names for names in _NAMES if any(getattr(request, name) is not None for name in names)]
    if len(given) == 1:
        first, second = (getattr(request, name) for name in given[0])
        if first is not None and second is not None:
            return given[0], first, second
    raise InvalidRequestError(
        "The two sides to compare are missing or given under several names",
        hint="Send text_1 and text_2, or queries and documents",
        param="/text_1",
    )


def _as_list(side: WrittenSide, pointer: str, contents: Contents) -> list[Side]:
    if isinstance(side, str):
        return [side]
    if isinstance(side, InputItem):
        return contents.item(side, pointer)
    found: list[Side] = []
    for index, one in enumerate(side):
        found += [one] if isinstance(one, str) else _one(contents.item(one, f"{pointer}/{index}"), f"{pointer}/{index}")
    return found


def _query(query: str | InputItem, contents: Contents) -> Side:
    return query if isinstance(query, str) else _one(contents.item(query, "/query"), "/query")[0]


def _one(sides: list[Side], pointer: str) -> list[Side]:
    if len(sides) != 1:
        raise InvalidRequestError("One text or one picture belongs here", hint="Send parts apart", param=pointer)
    return sides


def _document(document: str | Document, index: int, contents: Contents) -> Side:
    if isinstance(document, str):
        return document
    return contents.item(InputItem(text=document.text, image=document.image), f"/documents/{index}")[0]


def _given_back(document: Side) -> DocumentText | msgspec.UnsetType:
    return DocumentText(document) if isinstance(document, str) else msgspec.UNSET


def _write_scores(outputs: Sequence[PoolOutput], heading: Heading) -> ScoreList:
    data = [Score(index=index, score=reported(float(one.values[0]))) for index, one in enumerate(outputs)]
    return ScoreList(**heading.shared(), data=data)  # type: ignore[arg-type]


def _meta(heading: Heading) -> dict[str, object]:
    """Cohere's footer: one search unit a call, and a sentence for what was cut."""
    meta: dict[str, object] = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}
    if heading.truncated:
        meta["warnings"] = [f"{len(heading.truncated)} of the documents were cut, see 'truncated'"]
    return meta
