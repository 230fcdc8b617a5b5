"""Which KV slot each sequence occupies.

Decoding sequences occupy slots 0..n-1 without gaps, so that attention reads one plain view; sequences still being
prefilled stand behind them. Keeping that shape costs at most one copy per start and one per end.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class SlotMove:
    """Content of slot `source` goes to `target`, and that of `target` to `source` when it has a `displaced` owner."""

    source: int
    target: int
    displaced: int | None = None


class SlotTable:
    """Owners of slots, by key."""

    def __init__(self, num_slots: int) -> None:
        self._owner: list[int | None] = [None] * num_slots
        self._slot: dict[int, int] = {}
        self.num_decoding = 0

    @property
    def num_free(self) -> int:
        """Slots without owner."""
        return len(self._owner) - len(self._slot)

    def slot(self, key: int) -> int:
        """The slot of an owner."""
        return self._slot[key]

    def owner(self, slot: int) -> int | None:
        """The owner of a slot."""
        return self._owner[slot]

    def take(self, key: int) -> int:
        """Give the lowest free slot to a sequence that starts its prefill. One must be free."""
        slot = self._owner.index(None, self.num_decoding)
        self._set(slot, key)
        return slot

    def promote(self, key: int) -> SlotMove | None:
        """Move a prefilled sequence into the decoding range."""
        source, target = self._slot[key], self.num_decoding
        self.num_decoding += 1
        if source == target:
            return None
        other = self._owner[target]
        self._set(target, key)
        if other is None:
            self._owner[source] = None
            return SlotMove(source, target)
        self._set(source, other)
        return SlotMove(source, target, other)

    def release(self, key: int) -> SlotMove | None:
        """Free a sequence's slot; the last decoding sequence fills a gap."""
        slot = self._slot.pop(key)
        self._owner[slot] = None
        if slot >= self.num_decoding:
            return None
        self.num_decoding -= 1
        last = self.num_decoding
        if slot == last:
            return None
        moved = self._owner[last]
        assert moved is not None, "a gap in the decoding range"
        self._owner[last] = None
        self._set(slot, moved)
        return SlotMove(last, slot)

    def check_invariants(self) -> None:
        """Owners and slots agree; the decoding range has no gap."""
        assert all(self._owner[slot] == key for key, slot in self._slot.items())
        assert sum(owner is not None for owner in self._owner) == len(self._slot)
        assert all(self._owner[slot] is not None for slot in range(self.num_decoding))

    def _set(self, slot: int, key: int) -> None:
        self._owner[slot] = key
        self._slot[key] = slot
