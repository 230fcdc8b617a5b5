"""The models list and the error body."""

from typing import Literal

import msgspec


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is served, or an adapter, which names its `parent`. The fields after it are Chiasm's.

    `tasks` is what it does.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "chiasm"
    parent: str | None = None
    family: str
    max_model_len: int
    takes_images: bool
    dtype: str
    device: str
    model_revision: str
    processor_revision: str
    tasks: tuple[str, ...] = ()


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `GET /v1/models`."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """What happened; `hint` says what to do, `param` points into the request (JSON pointer)."""

    message: str
    type: str
    param: str | None
    code: str
    hint: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    """Body of every response that is not 2xx, and of an error inside a stream."""

    error: ErrorDetail
