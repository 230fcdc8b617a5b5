"""A consumer's own copies of checked embeddings, from which its workers load."""

from collections import OrderedDict
from collections.abc import Mapping
from threading import Lock

import msgspec

from chiasm.connectors.base import Buffer, Transport
from chiasm.engines.vllm.ec.announcement import Layout
from chiasm.errors import LayoutMismatchError, OverloadedError

_FOR_EVER_S = 1e9


class StoredEmbedding(msgspec.Struct, frozen=True, kw_only=True):
    """A checked copy in this host's shared memory, and what it is."""

    address: str
    layout: Layout
    metadata: Mapping[str, object]


class _Entry(msgspec.Struct):
    stored: StoredEmbedding
    num_holds: int = 0


class VerifiedStore:
    """Bounded by the transport's quota of `max_bytes`; what nobody holds makes room, oldest use first. Thread-safe."""

    def __init__(self, transport: Transport, max_bytes: int) -> None:
        self._transport = transport
        self._max_bytes = max_bytes
        self._lock = Lock()  # of the entries; never held while bytes are copied, for the scheduler's thread takes it
        self._put_lock = Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self.num_evicted = 0

    def put(self, identity: str, layout: Layout, metadata: Mapping[str, object], data: Buffer) -> StoredEmbedding:
        """Copy checked bytes; they replace what is there for the identity.

        Raises:
            OverloadedError: What is held leaves no room.
            LayoutMismatchError: Other bytes of this identity are in use.
        """
        if layout.num_bytes > self._max_bytes:  # emptying the store would not help
            raise OverloadedError(f"{layout.num_bytes} bytes do not fit {self._max_bytes}", hint="Raise max_bytes")
        with self._put_lock:
            with self._lock:
                entry = self._entries.get(identity)
                if entry is not None and entry.num_holds:
                    if (entry.stored.layout, entry.stored.metadata) == (layout, metadata):
                        return entry.stored
                    raise LayoutMismatchError("An embedding of the same identity but of another layout is in use")
                if entry is not None:
                    self._drop(identity)
            address = self._make_room_and_put(identity, data)
            stored = StoredEmbedding(address=address, layout=layout, metadata=metadata)
            with self._lock:
                self._entries[identity] = _Entry(stored)
            return stored

    def hold(self, identity: str) -> StoredEmbedding | None:
        """Keep a copy until `release`; None when it is not there."""
        with self._lock:
            entry = self._entries.get(identity)
            if entry is None:
                return None
            self._entries.move_to_end(identity)
            entry.num_holds += 1
            return entry.stored

    def release(self, identity: str) -> None:
        """Give up one hold."""
        with self._lock:
            self._entries[identity].num_holds -= 1

    def discard(self, identity: str) -> None:
        """Forget a copy that turned out to be unusable, unless somebody holds it."""
        with self._lock:
            entry = self._entries.get(identity)
            if entry is not None and not entry.num_holds:
                self._drop(identity)

    def forget(self) -> int:
        """Forget all that nobody holds; returns how much is held."""
        with self._lock:
            for identity in [name for name, entry in self._entries.items() if not entry.num_holds]:
                self._drop(identity)
            return len(self._entries)

    def _make_room_and_put(self, identity: str, data: Buffer) -> str:
        while True:
            try:
                return self._transport.put(identity, data, ttl_s=_FOR_EVER_S)
            except OverloadedError:
                with self._lock:
                    oldest = next((name for name, entry in self._entries.items() if not entry.num_holds), None)
                    if oldest is None:
                        raise
                    self._drop(oldest)
                    self.num_evicted += 1

    def _drop(self, identity: str) -> None:
        del self._entries[identity]
        self._transport.drop(identity)
