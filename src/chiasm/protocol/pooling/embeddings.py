"""Bodies of embeddings: OpenAI's, and Cohere's second version."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from chiasm.protocol.openai.fields import FieldPolicy, Refused
from chiasm.protocol.openai.sampling import ChiasmOptions
from chiasm.protocol.pooling.fields import EncodingFormat, Messages, PoolingBody, PoolingFields, Texts

_Dimensions = Annotated[int, Meta(ge=1)]


class EmbeddingRequest(PoolingFields, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /v1/embeddings`: an input, or for models that take pictures a conversation of one message.

    `prompt_name` is one of the model's own prefixes, such as 'query'.
    """

    input: Texts | None = None
    messages: Messages | None = None
    encoding_format: EncodingFormat | None = None
    dimensions: _Dimensions | None = None
    add_special_tokens: bool | None = None
    prompt_name: str | None = None


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """One vector: numbers, or little-endian float32 in base64."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingList(PoolingBody, frozen=True, kw_only=True):
    """Answer of `POST /v1/embeddings`."""

    data: list[Embedding]


class CohereEmbedRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /v2/embed`: texts, or pictures as data URLs or URLs.

    `input_type` chooses the model's prefix for queries or documents.
    """

    texts: Annotated[list[str], Meta(min_length=1)] | None = None
    images: Annotated[list[str], Meta(min_length=1)] | None = None
    model: str | None = None
    input_type: Literal["search_document", "search_query", "classification", "clustering", "image"] | None = None
    embedding_types: Annotated[list[Literal["float", "base64"]], Meta(min_length=1)] | None = None
    output_dimension: _Dimensions | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    truncate: Literal["NONE", "START", "END"] = "END"
    chiasm: ChiasmOptions | None = None


COHERE_EMBED_POLICY: FieldPolicy = {
    "inputs": Refused((None, []), "Send texts or images"),
    "priority": Refused((None, 0), "Requests are served in the order they came"),
}


class CohereEmbeddings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"floats": "float"}):
    """Vectors by type."""

    floats: list[list[float]] | None = None
    base64: list[str] | None = None


class CohereEmbedBody(PoolingBody, frozen=True, kw_only=True):
    """Answer of `POST /v2/embed`."""

    response_type: Literal["embeddings_by_type"] = "embeddings_by_type"
    embeddings: CohereEmbeddings
    texts: list[str]
    meta: dict[str, Any]
