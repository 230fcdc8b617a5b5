"""Media items, the metadata an encoder returns for them, and handles to embeddings."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from chiasm.protocol.contract import HANDLE_VERSION

Sha256Hex = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]

MAX_SAMPLED_FRAMES = 4096
"""Of one video, whatever settings and models allow."""

CacheSalt = Annotated[str, Meta(max_length=256)]
"""Mixed into the keys of everything cached: only equal salts share. Opaque; never a caller's key. Empty is one, too."""


class InlineSource(msgspec.Struct, frozen=True, tag="inline"):
    """The encoded bytes themselves (JPEG, PNG, ...), as fetched and checked by the gateway."""

    data: bytes


class SpoolSource(msgspec.Struct, frozen=True, tag="spool"):
    """The encoded bytes as a file of the media spool that gateway and workers of one host share.

    `name` is a name inside the reader's own spool folder, never a path: a worker opens nothing else on request.
    """

    name: Annotated[str, Meta(pattern=r"^[0-9a-z-]{1,128}$")]
    num_bytes: Annotated[int, Meta(ge=1)]


MediaKind = Literal["image", "video"]


class VideoSample(msgspec.Struct, frozen=True, kw_only=True):
    """Which frames of a video the model sees, as chosen by the gateway from the packets alone.

    `indices` count from the first frame shown, rising. `fps` is the video's average; 0 where it states no times.
    """

    num_frames: Annotated[int, Meta(ge=1)]
    fps: Annotated[float, Meta(ge=0)]
    indices: Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(min_length=1, max_length=MAX_SAMPLED_FRAMES)]


class EmbeddingMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """What a consumer must know, and check, before it uses an embedding.

    `shape` is [num_embeddings, width]; width is hidden_size x (1 + deepstack levels). `grid_thw` counts patches
    (frames, rows, columns) before merging; None for models without a grid. `second_per_grid_s` is how far apart a
    video's frames of patches are. `checksum` is of the contiguous bytes: the algorithm's name, a colon, hex.
    """

    version: int = HANDLE_VERSION
    kind: MediaKind = "image"
    identity: Sha256Hex
    num_embeddings: Annotated[int, Meta(ge=1)]
    shape: tuple[Annotated[int, Meta(ge=1)], Annotated[int, Meta(ge=1)]]
    dtype: Literal["float32", "bfloat16", "float16"]
    grid_thw: tuple[Annotated[int, Meta(ge=1)], Annotated[int, Meta(ge=1)], Annotated[int, Meta(ge=1)]] | None = None
    merge_size: Annotated[int, Meta(ge=1)] = 1
    second_per_grid_s: Annotated[float, Meta(ge=0)] | None = None
    model_revision: str
    processor_revision: str
    checksum: str


class EmbeddingHandle(msgspec.Struct, frozen=True, kw_only=True, tag="embedding"):
    """Names an embedding held by a connector. Good until `expires_at_s`, in Unix time of the producer.

    `address` says where, in words that only connectors of the kind `connector` understand.
    """

    connector: str
    key: str
    address: Annotated[str, Meta(max_length=1024)] = ""
    metadata: EmbeddingMetadata
    expires_at_s: float | None = None


class LateSource(msgspec.Struct, frozen=True, tag="late"):
    """A handle that follows in a call of its own, `SupplyRequest`, while the prompt is computed as far as it goes."""


class MediaItem(msgspec.Struct, frozen=True, kw_only=True):
    """One medium of a request, checked and identified by the gateway.

    `identity` is the sha256 of the encoded bytes or, by a setting, of the pixels; of a video, of bytes and sample.
    `width` and `height` are pixels after rotation, from the header. Of an animated picture only the first frame is
    used. `video` is there for videos and for nothing else.
    """

    kind: MediaKind = "image"
    identity: Sha256Hex
    format: str
    width: Annotated[int, Meta(ge=1)]
    height: Annotated[int, Meta(ge=1)]
    is_animated: bool = False
    video: VideoSample | None = None
    source: InlineSource | SpoolSource | EmbeddingHandle | LateSource
