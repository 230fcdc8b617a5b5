"""vLLM's events as they come: MessagePack, of which only what is used here is read."""

from math import isfinite
from typing import Annotated

import msgspec
from msgspec import Meta

from chiasm.errors import EngineError

BlockHash = Annotated[bytes, Meta(max_length=64)] | int
"""How vLLM names a block: by all tokens up to its end, pictures, adapter and salt included."""


class BlockStored(msgspec.Struct, frozen=True, tag=True):
    """Blocks in the order of the prompt, the first one after `parent_block_hash`; None: at the prompt's beginning.

    `session_id` is what the call that stored or used them was given.
    """

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    block_size: Annotated[int, Meta(ge=1)]
    medium: str | None = None
    group_idx: int | None = None
    session_id: str | None = None


class BlockRemoved(msgspec.Struct, frozen=True, tag=True):
    """Blocks that are there no longer."""

    block_hashes: list[BlockHash]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, tag=True):
    """Nothing is there any longer."""


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """What one step of the engine brought, and when, by the server's clock."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


_DECODE = msgspec.msgpack.Decoder(Batch).decode


def batch_of(payload: bytes) -> Batch:
    """Read a batch. Raises `EngineError` when it cannot be understood."""
    try:
        batch = _DECODE(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise EngineError(f"vLLM's cache events cannot be understood: {str(error)[:200]}") from error
    if not isfinite(batch.ts):  # restarts are told by it
        raise EngineError("vLLM's cache events have no time")
    return batch
