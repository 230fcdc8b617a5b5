"""A map bounded in bytes with entries that can be held: the bookkeeping of embedding caches."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

from chiasm.errors import OverloadedError

V = TypeVar("V")


@dataclass(slots=True)
class _Entry(Generic[V]):
    value: V
    size_bytes: int
    num_holds: int = 0


class ByteLru(Generic[V]):
    """Least recently used entries leave first; held ones never leave.

    Entries nobody holds are kept up to `capacity_bytes`; entries in use may take `max_held_bytes`. Not thread-safe.
    """

    def __init__(self, capacity_bytes: int, max_held_bytes: int) -> None:
        self._entries: OrderedDict[str, _Entry[V]] = OrderedDict()
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
        """Store and hold once. A key already stored keeps its value and gains a holder.

        Raises:
            OverloadedError: Too much is held already; an entry alone always fits.
        """
        if key not in self._entries:
            if self.held_bytes and self.held_bytes + size_bytes > self.max_held_bytes:
                raise OverloadedError(f"{self.held_bytes} bytes of embeddings are in use; {size_bytes} more do not fit")
            self._entries[key] = _Entry(value, size_bytes)
            self.used_bytes += size_bytes
        self.hold(key)
        self._evict()

    def hold(self, key: str) -> V | None:
        """The value, kept until `release`; None when it is not stored."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        entry.num_holds += 1
        self.held_bytes += entry.size_bytes if entry.num_holds == 1 else 0
        self._entries.move_to_end(key)
        return entry.value

    def get(self, key: str) -> V | None:
        """The value without holding it."""
        entry = self._entries.get(key)
        return None if entry is None else entry.value

    def release(self, key: str) -> None:
        """Undo one hold."""
        entry = self._entries[key]
        assert entry.num_holds > 0, key
        entry.num_holds -= 1
        self.held_bytes -= 0 if entry.num_holds else entry.size_bytes
        self._evict()

    def remove(self, key: str) -> bool:
        """Forget an entry that nobody holds; says whether it was forgotten."""
        entry = self._entries.get(key)
        if entry is None or entry.num_holds:
            return False
        del self._entries[key]
        self.used_bytes -= entry.size_bytes
        return True

    def _evict(self) -> None:
        if self.used_bytes <= self.capacity_bytes:
            return
        for key in [key for key, entry in self._entries.items() if not entry.num_holds]:
            self.remove(key)
            self.num_evicted += 1
            if self.used_bytes <= self.capacity_bytes:
                return
