"""Embeddings of producers and consumers in one process: no copy, but the same checks as between machines."""

from threading import Lock

from chiasm.cache.byte_lru import ByteLru
from chiasm.connectors.base import Buffer, ExpectedEmbedding, check_embedding, embedding_key
from chiasm.errors import HandleExpiredError
from chiasm.protocol.media import EmbeddingHandle, EmbeddingMetadata


class LocalConnector:
    """An `EmbeddingConnector` and an embedding cache at once: what nobody holds stays until room is needed."""

    def __init__(self, *, capacity_bytes: int, max_held_bytes: int) -> None:
        self._store: ByteLru[tuple[EmbeddingHandle, Buffer]] = ByteLru(capacity_bytes, max_held_bytes)
        self._lock = Lock()

    @property
    def num_stored(self) -> int:
        """Embeddings in memory."""
        return len(self._store)

    @property
    def num_held(self) -> int:
        """Embeddings in use."""
        with self._lock:
            return self._store.num_held

    def publish(self, metadata: EmbeddingMetadata, data: Buffer, cache_salt: str = "") -> EmbeddingHandle:
        """See `EmbeddingConnector.publish`; keeps a reference to `data`, not a copy."""
        key = embedding_key(metadata.identity, metadata.model_revision, metadata.processor_revision, cache_salt)
        handle = EmbeddingHandle(connector="local", key=key, metadata=metadata)
        with self._lock:
            self._store.put_held(key, (handle, data), memoryview(data).nbytes)
        return handle

    def hold(self, key: str) -> EmbeddingHandle | None:
        """See `EmbeddingConnector.hold`."""
        with self._lock:
            stored = self._store.hold(key)
        return None if stored is None else stored[0]

    def load(self, handle: EmbeddingHandle, expected: ExpectedEmbedding) -> Buffer:
        """See `EmbeddingConnector.load`."""
        with self._lock:
            stored = self._store.get(handle.key)
        if stored is None:
            raise HandleExpiredError(f"Embedding {handle.metadata.identity[:12]} is no longer stored")
        check_embedding(handle.metadata, stored[1], expected)
        return stored[1]

    def data(self, key: str) -> Buffer:
        """The bytes of an embedding that the caller holds, to be offered to others."""
        with self._lock:
            stored = self._store.get(key)
        assert stored is not None, f"nobody holds {key}"
        return stored[1]

    def release(self, key: str) -> None:
        """See `EmbeddingConnector.release`."""
        with self._lock:
            self._store.release(key)
