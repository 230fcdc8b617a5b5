"""The embedding connector's two sides, and the checks that stand between them."""

from collections.abc import Mapping
from math import prod
from typing import Protocol

import msgspec
import xxhash

from chiasm.errors import ChecksumMismatchError, LayoutMismatchError
from chiasm.protocol.contract import HANDLE_VERSION
from chiasm.protocol.kv import KvMetadata
from chiasm.protocol.media import EmbeddingHandle, EmbeddingMetadata

Buffer = bytes | memoryview
ITEM_SIZE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
CHECKSUM_ALGORITHM = "xxh3_128"


class ExpectedEmbedding(msgspec.Struct, frozen=True, kw_only=True):
    """What the consumer's own plan says an embedding must be."""

    identity: str
    num_embeddings: int
    width: int
    dtype: str
    grid_thw: tuple[int, int, int] | None
    kind: str = "image"
    second_per_grid_s: float | None = None
    model_revision: str
    processor_revision: str


class ExpectedKv(msgspec.Struct, frozen=True, kw_only=True):
    """What the decoding worker's own plan says keys and values must be. `shape` as in `KvMetadata`."""

    num_tokens: int
    shape: tuple[int, int, int, int, int]
    dtype: str
    model_revision: str
    prompt_hash: str


class EmbeddingConnector(Protocol):
    """Holds embeddings by key. Every `publish` and successful `hold` is undone by one `release`. Thread-safe."""

    def publish(self, metadata: EmbeddingMetadata, data: Buffer, cache_salt: str = "") -> EmbeddingHandle:
        """Store contiguous bytes, held once by the caller. `data` must not change afterwards.

        It is found only by the key of the same scope (`embedding_key`).

        Raises:
            OverloadedError: Too many embeddings are in use.
        """
        ...

    def hold(self, key: str) -> EmbeddingHandle | None:
        """Keep a stored embedding until `release`; None when it is not there."""
        ...

    def load(self, handle: EmbeddingHandle, expected: ExpectedEmbedding) -> Buffer:
        """The checked bytes, read-only, good while held.

        Raises:
            HandleExpiredError: It is no longer stored.
            LayoutMismatchError: It is not what the consumer planned for.
            ChecksumMismatchError: The bytes are not those published.
        """
        ...

    def release(self, key: str) -> None:
        """Give up one hold."""
        ...


class Transport(Protocol):
    """Moves tensors' bytes from the process that made them to those that use them. Thread-safe; calls may block.

    One object serves both sides. It knows bytes only: what they mean is checked with `check_embedding` or
    `check_kv` by whoever takes them.
    """

    @property
    def kind(self) -> str:
        """Its name in handles: 'shm', 'tcp' or 'file'."""
        ...

    @property
    def num_offered(self) -> int:
        """Tensors that others may take from this process now."""
        ...

    @property
    def offered_bytes(self) -> int:
        """What those tensors take."""
        ...

    def put(self, key: str, data: Buffer, *, ttl_s: float) -> str:
        """Offer a copy of contiguous bytes for `ttl_s`; returns their address. A key that is there is renewed.

        Raises:
            OverloadedError: The quota is used up by what has not expired.
        """
        ...

    def get(self, address: str, num_bytes: int, *, timeout_s: float) -> Buffer:
        """Take what another process offers: read-only bytes, good for as long as the caller keeps the buffer.

        The address comes from outside and is trusted in nothing.

        Raises:
            HandleExpiredError: It is not offered any more, or its process is gone.
            TransferError: Malformed address, or the bytes did not arrive whole and in time.
        """
        ...

    def release(self, address: str, *, timeout_s: float) -> None:
        """Tell whoever offers a tensor that nobody takes it any more; it makes room there before it expires.

        For the only reader of a tensor, who keeps the bytes it got. Harmless when it is not offered any more.

        Raises:
            TransferError: Malformed address, or the word did not get there in time.
        """
        ...

    def drop(self, key: str) -> bool:
        """Stop offering a tensor; says whether it could still be taken until now."""
        ...

    def close(self) -> None:
        """Stop offering everything and free it."""
        ...


def embedding_key(identity: str, model_revision: str, processor_revision: str, cache_salt: str = "") -> str:
    """Name of an embedding: the medium's bytes, everything else that shapes the result, and who may find it."""
    return f"{identity}:{model_revision}:{processor_revision}" + (f":{cache_salt}" if cache_salt else "")


def checksum(data: Buffer) -> str:
    """Content hash carried in the metadata, after its algorithm's name.

    Against accidents (a buffer used again, a cut or mixed-up transfer), not against attackers: workers trust each
    other. Hence the fastest hash that has 128 bits; a cryptographic one takes longer than moving the bytes.
    """
    return f"{CHECKSUM_ALGORITHM}:{xxhash.xxh3_128_hexdigest(data)}"


def check_embedding(metadata: EmbeddingMetadata, data: Buffer, expected: ExpectedEmbedding) -> None:
    """Compare announcement, bytes and expectation. Raises `LayoutMismatchError` or `ChecksumMismatchError`."""
    announced = {
        "version": (metadata.version, HANDLE_VERSION),
        "kind": (metadata.kind, expected.kind),
        "identity": (metadata.identity, expected.identity),
        "embeddings": (metadata.num_embeddings, expected.num_embeddings),
        "shape": (metadata.shape, (expected.num_embeddings, expected.width)),
        "dtype": (metadata.dtype, expected.dtype),
        "grid": (metadata.grid_thw, expected.grid_thw),
        "seconds per grid": (metadata.second_per_grid_s, expected.second_per_grid_s),
        "grid product": (_embeddings_of_grid(metadata), metadata.num_embeddings),
        "model revision": (metadata.model_revision, expected.model_revision),
        "processor revision": (metadata.processor_revision, expected.processor_revision),
    }
    _check(f"Embedding {metadata.identity[:12]}", announced, metadata, data)


def check_kv(metadata: KvMetadata, data: Buffer, expected: ExpectedKv) -> None:
    """Compare announcement, bytes and expectation. Raises `LayoutMismatchError` or `ChecksumMismatchError`."""
    announced = {
        "version": (metadata.version, HANDLE_VERSION),
        "prompt": (metadata.prompt_hash, expected.prompt_hash),
        "tokens": (metadata.num_tokens, expected.num_tokens),
        "shape": (metadata.shape, expected.shape),
        "tokens of the shape": (metadata.shape[3], metadata.num_tokens),
        "dtype": (metadata.dtype, expected.dtype),
        "model revision": (metadata.model_revision, expected.model_revision),
    }
    _check(f"Keys and values {metadata.prompt_hash[:12]}", announced, metadata, data)


def _check(
    what: str, announced: Mapping[str, tuple[object, object]], metadata: EmbeddingMetadata | KvMetadata, data: Buffer
) -> None:
    """Raise at the first pair (found, wanted) that differs, then at the first thing wrong with the bytes."""
    algorithm, _, _ = metadata.checksum.partition(":")
    num_bytes = prod(metadata.shape) * ITEM_SIZE_BYTES[metadata.dtype]
    of_bytes = {
        "bytes": (memoryview(data).nbytes, num_bytes),
        "checksum algorithm": (algorithm, CHECKSUM_ALGORITHM),
    }
    for name, (found, wanted) in {**announced, **of_bytes}.items():
        if found != wanted:
            raise LayoutMismatchError(f"{what}: {name} is {found}, expected {wanted}")
    if checksum(data) != metadata.checksum:
        raise ChecksumMismatchError(f"{what}: bytes differ from those published")


def _embeddings_of_grid(metadata: EmbeddingMetadata) -> int:
    if metadata.grid_thw is None:
        return metadata.num_embeddings
    return prod(metadata.grid_thw) // metadata.merge_size**2
