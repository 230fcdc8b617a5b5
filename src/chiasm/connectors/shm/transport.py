"""A `Transport` over shared memory: one copy, by the producer."""

import logging
from threading import Lock

from chiasm.connectors.base import Buffer
from chiasm.connectors.shm import arena
from chiasm.connectors.shm.producer import Producer
from chiasm.connectors.shm.reader import Reader
from chiasm.errors import ShuttingDownError, TransferError

logger = logging.getLogger(__name__)


class ShmTransport:
    """Removes, at its start, what killed processes of this user left behind.

    A tensor outlives its producer's death: until the next process starts it can still be taken.
    """

    def __init__(self, *, max_bytes: int) -> None:
        num_removed = arena.remove_leftovers()
        if num_removed:
            logger.warning("Removed shared memory of %d processes that did not end properly", num_removed)
        self._lock = Lock()
        self._producer = Producer(max_bytes)
        self._reader = Reader()
        self._is_closed = False

    @property
    def kind(self) -> str:
        """See `Transport.kind`."""
        return "shm"

    @property
    def num_offered(self) -> int:
        """See `Transport.num_offered`."""
        with self._lock:
            return 0 if self._is_closed else len(self._producer.book)

    @property
    def offered_bytes(self) -> int:
        """See `Transport.offered_bytes`."""
        return self._producer.book.used_bytes

    def put(self, key: str, data: Buffer, *, ttl_s: float) -> str:
        """See `Transport.put`. Bytes that differ from those offered under the key replace them."""
        with self._lock:
            if self._is_closed:
                raise ShuttingDownError("The transport is closed")
            return self._producer.book.put(key, data, ttl_s).address

    def get(self, address: str, num_bytes: int, *, timeout_s: float) -> Buffer:
        """See `Transport.get`. A view of the producer's memory, or a copy when small or when many views are held."""
        if self._is_closed:
            raise TransferError("The transport is closed")
        return self._reader.get(address, num_bytes)

    def release(self, address: str, *, timeout_s: float) -> None:
        """See `Transport.release`. Views stay good."""
        if self._is_closed:
            raise TransferError("The transport is closed")
        self._reader.release(address)

    def drop(self, key: str) -> bool:
        """See `Transport.drop`."""
        with self._lock:
            return not self._is_closed and self._producer.book.remove(key)

    def close(self) -> None:
        """See `Transport.close`."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._producer.close()
            self._reader.close()
