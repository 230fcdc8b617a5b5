"""Bodies of requests, as both sides check them."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from chiasm.protocol.adapters import AdapterRef
from chiasm.protocol.contract import UNSAID_VERSION
from chiasm.protocol.kv import KvHandle
from chiasm.protocol.media import (
    CacheSalt,
    EmbeddingHandle,
    InlineSource,
    LateSource,
    MediaKind,
    Sha256Hex,
    SpoolSource,
    VideoSample,
)

Grid = tuple[Annotated[int, Meta(ge=1)], Annotated[int, Meta(ge=1)], Annotated[int, Meta(ge=1)]]
Source = InlineSource | SpoolSource | EmbeddingHandle | LateSource


class Text(msgspec.Struct, frozen=True, tag="text", tag_field="type"):
    """A piece of text."""

    text: str


class Url(msgspec.Struct, frozen=True):
    """Where a picture's bytes are: a data URL, or a name in the spool. JSON text: megabytes are not looked through."""

    url: msgspec.Raw


class PicturePart(msgspec.Struct, frozen=True, tag="image_url", tag_field="type"):
    """A picture that is to be encoded. `uuid` is its identity."""

    image_url: Url
    uuid: Sha256Hex


class VideoPart(msgspec.Struct, frozen=True, tag="video_url", tag_field="type"):
    """A video that is to be encoded. `uuid` is its identity."""

    video_url: Url
    uuid: Sha256Hex


class Metadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a consumer's prompt needs to know of an embedding. Flat: not a list of grids."""

    image_grid_thw: Grid | UnsetType = UNSET
    video_grid_thw: Grid | UnsetType = UNSET
    second_per_grid_ts: Annotated[float, Meta(ge=0)] | UnsetType = UNSET


class EmbedsPart(msgspec.Struct, frozen=True, tag="image_embeds", tag_field="type"):
    """A picture that has been encoded; its handle stands in `ec_transfer_params` under `uuid`, its identity.

    One whose handle follows has no metadata.
    """

    image_embeds: Metadata
    uuid: Sha256Hex


class VideoEmbedsPart(msgspec.Struct, frozen=True, tag="video_embeds", tag_field="type"):
    """A video that has been encoded, as `EmbedsPart` has it for pictures."""

    video_embeds: Metadata
    uuid: Sha256Hex


Part = Text | PicturePart | EmbedsPart | VideoPart | VideoEmbedsPart


class WireMessage(msgspec.Struct, frozen=True):
    """One turn. A single text is a plain string: templates of some models would join parts with line breaks."""

    role: Literal["system", "user", "assistant"]
    content: str | list[Part]


class EmbeddingEntry(msgspec.Struct, frozen=True):
    """One embedding of `ec_transfer_params`. `item_indices` are the items it stands for."""

    item_indices: list[Annotated[int, Meta(ge=0)]]
    metadata: Metadata
    handle: EmbeddingHandle


class KvParams(msgspec.Struct, frozen=True):
    """`do_remote_decode`: keep keys and values for another worker. `do_remote_prefill`: take those of `handle`."""

    do_remote_decode: bool = False
    do_remote_prefill: bool = False
    handle: KvHandle | None = None


class ItemBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a content part cannot say of an item. `source` is there when no part says it either."""

    kind: MediaKind = "image"
    identity: Sha256Hex
    format: str
    width: Annotated[int, Meta(ge=1)]
    height: Annotated[int, Meta(ge=1)]
    is_animated: bool = False
    video: VideoSample | None = None
    source: Source | UnsetType = UNSET


class Extension(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Chiasm's own part of a request. `places` names the item of each media part, in the order of the messages.

    `requires` names what a worker must know to answer rightly, which one of an older version would ignore.
    """

    version: int = UNSAID_VERSION
    task: Literal["generate", "encode"]
    timeout_s: Annotated[float, Meta(gt=0)]
    items: tuple[ItemBody, ...] = ()
    places: tuple[Annotated[int, Meta(ge=0)], ...] = ()
    adapter: AdapterRef | None = None
    requires: tuple[str, ...] = ()


class WireSchema(msgspec.Struct, frozen=True):
    """The schema, its text untouched."""

    schema: msgspec.Raw
    name: str = "answer"


class WireSchemaFormat(msgspec.Struct, frozen=True, tag="json_schema", tag_field="type"):
    """JSON that satisfies a schema."""

    json_schema: WireSchema


class PlainFormat(msgspec.Struct, frozen=True, tag="text", tag_field="type"):
    """Any text."""


class Streaming(msgspec.Struct, frozen=True):
    """Token counts come at the end of every stream; other servers must be asked for them."""

    include_usage: bool = True


class WireBody(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What both calls have. Fields without a default are always sent: other servers have other defaults."""

    model: str
    request_id: str
    stream: bool
    stream_options: Streaming | None = None
    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    n: int = 1
    priority: int = 0
    return_token_ids: bool = False
    response_format: PlainFormat | WireSchemaFormat | None = None
    ec_transfer_params: dict[str, EmbeddingEntry] | None = None
    kv_transfer_params: KvParams | None = None
    cache_salt: CacheSalt = ""
    chiasm: Extension


class ChatBody(WireBody, kw_only=True, omit_defaults=True):
    """Body of the chat call."""

    messages: tuple[WireMessage, ...]
    logprobs: bool = False
    top_logprobs: int | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False


class TextBody(WireBody, kw_only=True, omit_defaults=True):
    """Body of the text call; `prompt` is a text or token ids."""

    prompt: str | tuple[int, ...]
    logprobs: int | None = None


Fields = dict[str, Any]
"""Keyword arguments of a body."""
