"""Bodies of classification and of the general pooling endpoint."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from chiasm.protocol.pooling.fields import EncodingFormat, Messages, PoolingBody, PoolingFields, Texts


class ClassifyRequest(PoolingFields, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /classify`."""

    input: Texts
    add_special_tokens: bool | None = None


class Classification(msgspec.Struct, frozen=True, kw_only=True):
    """One input's classes. `label` is the likeliest; null when a probability is no number."""

    index: int
    label: str | None
    probs: list[float | None]
    num_classes: int


class ClassificationList(PoolingBody, frozen=True, kw_only=True):
    """Answer of `POST /classify`."""

    data: list[Classification]


class PoolingTaskRequest(PoolingFields, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /pooling`. Task 'plugin' takes `data` and maybe a processor's name; others take `input`."""

    task: Literal["embed", "classify", "token_embed", "token_classify", "plugin"] | None = None
    input: Texts | None = None
    messages: Messages | None = None
    data: Any = None
    processor: str | None = None
    encoding_format: EncodingFormat | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    add_special_tokens: bool | None = None


class PoolingData(msgspec.Struct, frozen=True, kw_only=True):
    """One input's numbers: a row, rows, or their float32 in base64, with their shape; null is no number."""

    index: int
    object: Literal["pooling"] = "pooling"
    data: list[float | list[float | None] | None] | str
    shape: tuple[int, ...]


class PoolingList(PoolingBody, frozen=True, kw_only=True):
    """Answer of `POST /pooling`."""

    data: list[PoolingData]


class PluginBody(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of a processor; `data` is its own."""

    request_id: str
    created_at: int
    model: str
    dtype: str
    data: Any
