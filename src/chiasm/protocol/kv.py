"""Keys and values of a computed prompt, on their way from the worker that prefilled it to the one that decodes."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from chiasm.protocol.contract import HANDLE_VERSION
from chiasm.protocol.media import Sha256Hex

_Count = Annotated[int, Meta(ge=1)]


class KvMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """What the decoding worker must know, and check, before it uses the tensor.

    `shape` is [layers, 2 (key, value), kv_heads, num_tokens, head_dim]. `prompt_hash` covers the token ids and the
    identities of the media among them: two prompts that differ in a picture only differ in it. `checksum` is of the
    contiguous bytes.
    """

    version: int = HANDLE_VERSION
    num_tokens: _Count
    shape: tuple[_Count, _Count, _Count, _Count, _Count]
    dtype: Literal["float32", "bfloat16", "float16"]
    model_revision: str
    prompt_hash: Sha256Hex
    checksum: str


class KvHandle(msgspec.Struct, frozen=True, kw_only=True, tag="kv"):
    """Names the keys and values of one prompt. For one reader, once; good until `expires_at_s` (Unix time)."""

    connector: str
    key: str
    address: Annotated[str, Meta(max_length=1024)] = ""
    metadata: KvMetadata
    expires_at_s: float
