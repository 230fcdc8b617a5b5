"""Which prefix blocks are held, in which place, and which one is given up next."""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import zip_longest
from threading import Lock

from chiasm.cache.label import CacheLabel
from chiasm.protocol.deletion import Deletion

_NO_LABEL = CacheLabel()


class BlockPool:
    """A fixed number of places for prefix blocks, least recently used one out first.

    The owner alone matches and inserts, and copies a block's content before it asks for anything else; other threads
    may pin. Within one prefix the last block counts as least recently used: a chain is given up from its end.
    """

    def __init__(self, num_blocks: int) -> None:
        self._free = list(range(num_blocks - 1, -1, -1))
        self._places: dict[bytes, int] = {}
        self._idle: OrderedDict[bytes, None] = OrderedDict()  # held and not pinned, next to leave first
        self._num_pins: dict[bytes, int] = {}
        self._labels: dict[bytes, CacheLabel] = {}
        self._deleted: set[bytes] = set()  # pinned, and to go when they are no longer
        self._lock = Lock()
        self.num_blocks = num_blocks
        self.num_evicted = 0

    def __len__(self) -> int:
        return len(self._places)

    @property
    def num_pinned(self) -> int:
        """Blocks that must stay."""
        return len(self._num_pins)

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        """Places of the longest held prefix of `hashes`."""
        with self._lock:
            held = self._held(hashes)
            self._touch(held)
            return [self._places[key] for key in held]

    def pin(self, hashes: Sequence[bytes]) -> int:
        """Keep the longest held prefix of `hashes` until `unpin`; returns its number of blocks."""
        with self._lock:
            held = self._held(hashes)
            if self._deleted:
                held = held[: next((i for i, key in enumerate(held) if key in self._deleted), len(held))]
            for key in held:
                self._num_pins[key] = self._num_pins.get(key, 0) + 1
                self._idle.pop(key, None)
            return len(held)

    def unpin(self, hashes: Sequence[bytes]) -> None:
        """Undo a `pin` of exactly these blocks."""
        with self._lock:
            for key in reversed(hashes):
                self._num_pins[key] -= 1
                if not self._num_pins[key]:
                    del self._num_pins[key]
                    if key in self._deleted:
                        self._remove(key)
                    else:
                        self._idle[key] = None

    def insert(self, hashes: Sequence[bytes], labels: Sequence[CacheLabel] = ()) -> list[tuple[int, int]]:
        """Take places for those blocks of a prefix that are not held yet. `labels` say by what they can be deleted.

        Returns (position in `hashes`, place) pairs to be filled by the caller at once. A prefix longer than what is
        free or not pinned keeps its start.
        """
        with self._lock:
            kept = hashes[: self.num_blocks]
            self._touch([key for key in kept if key in self._places])
            fresh, mine = [], frozenset(kept)
            for i, (key, label) in enumerate(zip_longest(kept, labels[: len(kept)], fillvalue=_NO_LABEL)):
                assert isinstance(key, bytes), "no more labels than blocks"
                self._deleted.discard(key)
                if key not in self._places:
                    place = self._take(mine)
                    if place is None:
                        break
                    self._places[key] = place
                    self._labels[key] = label
                    fresh.append((i, place))
            self._touch([key for key in kept if key in self._places])
            return fresh

    def forget(self, deletion: Deletion) -> tuple[list[int], int]:
        """Remove what a deletion covers; returns the places that are free now, and how many blocks are pinned.

        Those are not pinned again, and go when they are unpinned.
        """
        with self._lock:
            theirs = [key for key, label in self._labels.items() if label.is_covered(deletion)]
            pinned = [key for key in theirs if key in self._num_pins]
            self._deleted.update(pinned)
            return [self._remove(key) for key in theirs if key not in self._num_pins], len(pinned)

    def clear(self) -> None:
        """Forget everything that is not pinned."""
        with self._lock:
            for key in list(self._idle):
                self._remove(key)

    def check_invariants(self) -> None:
        """Every place is either free or held once; every held block is either pinned or may leave."""
        with self._lock:
            places = sorted([*self._free, *self._places.values()])
            assert places == list(range(self.num_blocks)), places
            assert {*self._idle, *self._num_pins} == {*self._places}
            assert not {*self._idle} & {*self._num_pins}
            assert {*self._labels} == {*self._places}
            assert self._deleted <= {*self._num_pins}

    def _held(self, hashes: Sequence[bytes]) -> Sequence[bytes]:
        for i, key in enumerate(hashes):
            if key not in self._places:
                return hashes[:i]
        return hashes

    def _take(self, kept: frozenset[bytes]) -> int | None:
        """A free place, or that of a block which is neither pinned nor part of the prefix being kept."""
        if self._free:
            return self._free.pop()
        oldest = next(iter(self._idle), None)
        if oldest is None or oldest in kept:
            return None
        self._remove(oldest)
        self.num_evicted += 1
        return self._free.pop()

    def _remove(self, key: bytes) -> int:
        """Free the place of a block that is not pinned."""
        self._idle.pop(key, None)
        self._deleted.discard(key)
        del self._labels[key]
        place = self._places.pop(key)
        self._free.append(place)
        return place

    def _touch(self, hashes: Sequence[bytes]) -> None:
        for key in reversed(hashes):
            if key not in self._num_pins:
                self._idle[key] = None
                self._idle.move_to_end(key)
