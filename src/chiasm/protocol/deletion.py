"""What is to be forgotten everywhere, and what became of that."""

from collections.abc import Collection
from typing import Protocol, runtime_checkable

import msgspec

from chiasm.errors import EngineError, InvalidRequestError
from chiasm.protocol.contract import CONTRACT_VERSION, check_gateway
from chiasm.protocol.media import CacheSalt, Sha256Hex


class Deletion(msgspec.Struct, frozen=True, kw_only=True):
    """All that was made of one medium, all that one scope has left, or with both, what that scope has of the medium.

    Or only what is offered under the key `offer`.
    """

    version: int = CONTRACT_VERSION
    identity: Sha256Hex | None = None
    cache_salt: CacheSalt | None = None
    offer: str | None = None

    def covers(self, cache_salt: str, media: Collection[str]) -> bool:
        """Whether something is meant that was left in a scope and made of media with these identities."""
        if self.offer is not None:
            return False
        is_medium = self.identity is None or self.identity in media
        return is_medium and (self.cache_salt is None or self.cache_salt == cache_salt)


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker has forgotten.

    Attributes:
        num_embeddings: Removed from its cache.
        num_offers: Embeddings, keys and values that other workers can no longer take.
        num_blocks: Prefix blocks removed.
        num_pending: Embeddings and blocks that requests under way still use: no new one finds them, and they go when
            they are let go of.
        num_known: Of the router: what it knew of where such things are.
        error: Code of what kept it from answering; then nothing is known about it.
    """

    worker: str
    num_embeddings: int = 0
    num_offers: int = 0
    num_blocks: int = 0
    num_pending: int = 0
    num_known: int = 0
    error: str | None = None


@runtime_checkable
class Forgetful(Protocol):
    """A worker that can be told to forget."""

    async def forget(self, deletion: Deletion, timeout_s: float) -> tuple[Deleted, ...]:
        """Delete from all that is cached or offered; one entry per worker that was to do so.

        Of requests under way, none leaves anything in a cache that the deletion covers.
        """
        ...


FORGET_PATH = "/cache/forget"
"""Where a worker's server takes a `Deletion` as JSON; the answer is `Deleted`, one for each worker there."""

_DECODE_ANSWER = msgspec.json.Decoder(tuple[Deleted, ...]).decode


def decode_deletion(body: bytes) -> Deletion:
    """Read a deletion. Raises `ContractVersionError`, and `InvalidRequestError` also for one that names nothing."""
    try:
        deletion = msgspec.json.decode(body, type=Deletion)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequestError(f"This is no deletion: {error}") from error
    check_gateway(deletion.version, "/version")
    if deletion.identity is None and deletion.cache_salt is None and deletion.offer is None:
        raise InvalidRequestError("The deletion names neither a medium nor a scope", param="/identity")
    return deletion


def decode_deleted(body: bytes) -> tuple[Deleted, ...]:
    """Read a worker's answer. Raises `EngineError`."""
    try:
        return _DECODE_ANSWER(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise EngineError("The worker's answer to a deletion cannot be understood") from error
