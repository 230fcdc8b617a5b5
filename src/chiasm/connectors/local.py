"""Embeddings of producers and consumers in one process: no copy, but the same checks as between machines."""

import time
from collections.abc import Callable
from math import inf
from threading import Lock
from typing import NamedTuple

from chiasm.cache.byte_lru import ByteLru
from chiasm.cache.label import CacheLabel
from chiasm.connectors.base import Buffer, ExpectedEmbedding, check_embedding, embedding_key
from chiasm.errors import HandleExpiredError
from chiasm.observability.memory import MemoryPart
from chiasm.protocol.deletion import Deletion
from chiasm.protocol.media import EmbeddingHandle, EmbeddingMetadata


class _Stored(NamedTuple):
    handle: EmbeddingHandle
    data: Buffer
    label: CacheLabel


class LocalConnector:
    """An `EmbeddingConnector` and an embedding cache at once.

    What nobody holds stays until room is needed, and at most `ttl_s` after it was made (0: no limit); what is that old
    leaves memory at the next use, or when somebody asks how much there is.
    """

    def __init__(
        self,
        *,
        capacity_bytes: int,
        max_held_bytes: int,
        ttl_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store: ByteLru[_Stored] = ByteLru(capacity_bytes, max_held_bytes, ttl_s or inf, clock)
        self._lock = Lock()

    @property
    def num_stored(self) -> int:
        """Embeddings in memory."""
        with self._lock:
            self._store.expire()
            return len(self._store)

    @property
    def num_held(self) -> int:
        """Embeddings in use."""
        with self._lock:
            return self._store.num_held

    def memory_parts(self) -> tuple[MemoryPart, ...]:
        """Embeddings that requests hold, and those kept for reuse."""
        with self._lock:
            used, held = self._store.used_bytes, self._store.held_bytes
            most, capacity = self._store.max_held_bytes, self._store.capacity_bytes
        return (
            MemoryPart(name="held_embeddings", kind="requests", used_bytes=held, reserved_bytes=most),
            MemoryPart(name="cached_embeddings", kind="cache", used_bytes=used - held, reserved_bytes=capacity),
        )

    def publish(self, metadata: EmbeddingMetadata, data: Buffer, cache_salt: str = "") -> EmbeddingHandle:
        """See `EmbeddingConnector.publish`; keeps a reference to `data`, not a copy."""
        key = embedding_key(metadata.identity, metadata.model_revision, metadata.processor_revision, cache_salt)
        handle = EmbeddingHandle(connector="local", key=key, metadata=metadata)
        with self._lock:
            label = CacheLabel(cache_salt, frozenset({metadata.identity}))
            self._store.put_held(key, _Stored(handle, data, label), memoryview(data).nbytes)
        return handle

    def hold(self, key: str) -> EmbeddingHandle | None:
        """See `EmbeddingConnector.hold`."""
        with self._lock:
            stored = self._store.hold(key)
        return None if stored is None else stored.handle

    def share(self, key: str) -> EmbeddingHandle:
        """Hold once more what somebody holds, also when nobody else would find it any more."""
        with self._lock:
            return self._store.share(key).handle

    def load(self, handle: EmbeddingHandle, expected: ExpectedEmbedding) -> Buffer:
        """See `EmbeddingConnector.load`."""
        with self._lock:
            stored = self._store.get(handle.key)
        if stored is None:
            raise HandleExpiredError(f"Embedding {handle.metadata.identity[:12]} is no longer stored")
        check_embedding(handle.metadata, stored.data, expected)
        return stored.data

    def data(self, key: str) -> Buffer:
        """The bytes of an embedding that the caller holds, to be offered to others."""
        with self._lock:
            stored = self._store.get(key)
        assert stored is not None, f"nobody holds {key}"
        return stored.data

    def release(self, key: str) -> None:
        """See `EmbeddingConnector.release`."""
        with self._lock:
            self._store.release(key)

    def remove(self, key: str) -> None:
        """Let nobody find an embedding any more; those who hold it keep it until they release it."""
        with self._lock:
            self._store.remove(key)

    def forget(self, deletion: Deletion) -> tuple[int, list[str]]:
        """Remove what a deletion covers; returns how many embeddings are gone, and which go when they are released."""
        with self._lock:
            theirs = [key for key, stored in self._store.items() if stored.label.is_covered(deletion)]
            held = [key for key in theirs if not self._store.remove(key)]
        return len(theirs) - len(held), held
