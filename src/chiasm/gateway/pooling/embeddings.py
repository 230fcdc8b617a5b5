"""`/v1/embeddings` and `/v2/embed`."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from chiasm.errors import InvalidRequestError
from chiasm.gateway.pooling.call import Call, TaskCall, check_dimensions, place_of_input
from chiasm.gateway.pooling.contents import Content, Contents, inputs, written
from chiasm.gateway.pooling.numbers import in_base64, in_lists
from chiasm.protocol.openai.decode import decode_request
from chiasm.protocol.pooling.embeddings import (
    COHERE_EMBED_POLICY,
    CohereEmbedBody,
    CohereEmbeddings,
    CohereEmbedRequest,
    Embedding,
    EmbeddingList,
    EmbeddingRequest,
)
from chiasm.protocol.pooling.fields import NESTED_NAMES, POOLING_POLICY, Heading
from chiasm.protocol.pooling.work import PoolingInfo, PoolOutput, PoolParams, TextInput, Truncation


class EmbeddingsDialect:
    """`POST /v1/embeddings`."""

    name = "embeddings"
    id_prefix = "embd"

    def call(self, body: bytes, info: PoolingInfo) -> Call:
        """See `Dialect`."""
        request = decode_request(body, EmbeddingRequest, POOLING_POLICY, NESTED_NAMES)
        check_prompt(request.prompt_name, info)
        params = msgspec.structs.replace(
            request.params(),
            dimensions=check_dimensions(request.dimensions, info, "/dimensions"),
            add_special_tokens=request.add_special_tokens is not False,
        )
        contents = Contents()
        read = written(request, contents, info, request.prompt_name)
        is_base64 = request.encoding_format == "base64"

        def write(outputs: Sequence[PoolOutput], heading: Heading) -> EmbeddingList:
            form = in_base64 if is_base64 else in_lists
            data = [Embedding(index=index, embedding=form(one.values)) for index, one in enumerate(outputs)]
            return EmbeddingList(**heading.shared(), data=data)  # type: ignore[arg-type]

        return TaskCall(
            model=request.model,
            options=request.chiasm,
            references=contents.references,
            task="embed",
            inputs=inputs(read),
            params=params,
            place=place_of_input(request.input),
            write=write,
        )


class CohereEmbedDialect:
    """`POST /v2/embed`."""

    name = "embed"
    id_prefix = "embd"

    def call(self, body: bytes, info: PoolingInfo) -> Call:
        """See `Dialect`."""
        request = decode_request(body, CohereEmbedRequest, COHERE_EMBED_POLICY, NESTED_NAMES)
        contents = Contents()
        read, field = _cohere_contents(request, contents, info)
        kinds = request.embedding_types or ["float"]
        truncate: dict[str, Truncation] = {"NONE": "refuse", "START": "start", "END": "end"}

        def write(outputs: Sequence[PoolOutput], heading: Heading) -> CohereEmbedBody:
            vectors = CohereEmbeddings(
                floats=[in_lists(one.values) for one in outputs] if "float" in kinds else None,
                base64=[in_base64(one.values) for one in outputs] if "base64" in kinds else None,
            )
            meta = {"billed_units": {"input_tokens": heading.usage.total_tokens}, "api_version": {"version": "2"}}
            shared = heading.shared()
            return CohereEmbedBody(**shared, embeddings=vectors, texts=request.texts or [], meta=meta)  # type: ignore[arg-type]

        return TaskCall(
            model=request.model,
            options=request.chiasm,
            references=contents.references,
            task="embed",
            inputs=inputs(read),
            params=PoolParams(
                dimensions=check_dimensions(request.output_dimension, info, "/output_dimension"),
                truncate=truncate[request.truncate],
                max_tokens=request.max_tokens,
            ),
            place=lambda item: f"/{field}/{item}",
            write=write,
        )


_PROMPTS: dict[str, Literal["query", "document"]] = {"search_query": "query", "search_document": "document"}


def _cohere_contents(
    request: CohereEmbedRequest, contents: Contents, info: PoolingInfo
) -> tuple[Sequence[Content], str]:
    """What is embedded, and the field where it stands."""
    if (request.texts is None) == (request.images is None):
        raise InvalidRequestError("Either texts or images are embedded", hint="Send one of them", param="/texts")
    if request.images is not None:
        return [contents.picture(url, f"/images/{index}") for index, url in enumerate(request.images)], "images"
    prompt = _PROMPTS.get(request.input_type or "")
    prompt = prompt if prompt in info.prompts else None
    return [TextInput(text, prompt) for text in request.texts or ()], "texts"


def check_prompt(name: str | None, info: PoolingInfo) -> None:
    """Raise `InvalidRequestError` for a prefix that the model does not have."""
    if name is not None and name not in info.prompts:
        known = ", ".join(info.prompts)
        raise InvalidRequestError(
            "The model has no prompt of this name",
            hint=f"It has: {known}" if known else "It has none; write what you need into the text",
            param="/prompt_name",
        )
