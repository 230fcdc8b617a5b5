"""A map bounded in bytes and time with entries that can be held: the bookkeeping of embedding caches."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

from chiasm.errors import OverloadedError

V = TypeVar("V")


@dataclass(slots=True)
class _Entry(Generic[V]):
    value: V
    size_bytes: int
    expires_at: float
    num_holds: int = 0


class ByteLru(Generic[V]):
    """Least recently used entries leave first; held ones never leave.

    Entries nobody holds are kept up to `capacity_bytes`; entries in use may take `max_held_bytes`. After `ttl_s`, or
    once removed, an entry is not found any more and leaves when nobody holds it; no thread watches the clock. Not
    thread-safe.
    """

    def __init__(
        self,
        capacity_bytes: int,
        max_held_bytes: int,
        ttl_s: float = inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._entries: OrderedDict[str, _Entry[V]] = OrderedDict()
        self._ttl_s = ttl_s
        self._clock = clock
        self.capacity_bytes = capacity_bytes
        self.max_held_bytes = max_held_bytes
        self.used_bytes = 0
        self.held_bytes = 0
        self.num_evicted = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def num_held(self) -> int:
        """Entries with at least one holder."""
        return sum(entry.num_holds > 0 for entry in self._entries.values())

    def put_held(self, key: str, value: V, size_bytes: int) -> None:
        """Store and hold once. A key already stored keeps its value, gains a holder, and is found again.

        Raises:
            OverloadedError: Too much is held already; an entry alone always fits.
        """
        self.expire()
        entry = self._entries.get(key)
        if entry is None:
            if self.held_bytes and self.held_bytes + size_bytes > self.max_held_bytes:
                raise OverloadedError(f"{self.held_bytes} bytes of embeddings are in use; {size_bytes} more do not fit")
            entry = self._entries[key] = _Entry(value, size_bytes, 0.0)
            self.used_bytes += size_bytes
        if entry.expires_at <= self._clock():
            entry.expires_at = self._clock() + self._ttl_s
        self._hold(key, entry)
        self._evict()

    def hold(self, key: str) -> V | None:
        """The value, kept until `release`; None when it is not to be found."""
        entry = self._entries.get(key)
        if entry is None or entry.expires_at <= self._clock():
            return None
        return self._hold(key, entry)

    def share(self, key: str) -> V:
        """Hold once more what somebody holds, whether it is to be found or not."""
        entry = self._entries[key]
        assert entry.num_holds > 0, key
        return self._hold(key, entry)

    def get(self, key: str) -> V | None:
        """The value, for somebody who holds it."""
        entry = self._entries.get(key)
        return None if entry is None else entry.value

    def release(self, key: str) -> None:
        """Undo one hold."""
        entry = self._entries[key]
        assert entry.num_holds > 0, key
        entry.num_holds -= 1
        self.held_bytes -= 0 if entry.num_holds else entry.size_bytes
        if not entry.num_holds and entry.expires_at <= self._clock():
            self._drop(key)
        self._evict()

    def remove(self, key: str) -> bool:
        """Let an entry be found no more; says whether it is gone already, and not only when nobody holds it."""
        entry = self._entries.get(key)
        if entry is None:
            return False
        entry.expires_at = 0.0
        if entry.num_holds:
            return False
        self._drop(key)
        return True

    def expire(self) -> None:
        """Drop what nobody holds and nobody will find."""
        now = self._clock()
        for key in [key for key, one in self._entries.items() if one.expires_at <= now and not one.num_holds]:
            self._drop(key)

    def items(self) -> list[tuple[str, V]]:
        """All that is stored, held or not."""
        return [(key, entry.value) for key, entry in self._entries.items()]

    def _hold(self, key: str, entry: _Entry[V]) -> V:
        entry.num_holds += 1
        self.held_bytes += entry.size_bytes if entry.num_holds == 1 else 0
        self._entries.move_to_end(key)
        return entry.value

    def _drop(self, key: str) -> None:
        self.used_bytes -= self._entries.pop(key).size_bytes

    def _evict(self) -> None:
        if self.used_bytes <= self.capacity_bytes:
            return
        for key in [key for key, entry in self._entries.items() if not entry.num_holds]:
            self._drop(key)
            self.num_evicted += 1
            if self.used_bytes <= self.capacity_bytes:
                return
