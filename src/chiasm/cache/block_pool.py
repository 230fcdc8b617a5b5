"""Which prefix blocks are held, in which place, and which one is given up next."""

from collections import OrderedDict
from collections.abc import Sequence


class BlockPool:
    """A fixed number of places for prefix blocks, least recently used one out first.

    The owner copies a block's content before it asks for anything else, so nothing is pinned between calls.
    Within one prefix the last block counts as least recently used: a chain is given up from its end.
    """

    def __init__(self, num_blocks: int) -> None:
        self._free = list(range(num_blocks - 1, -1, -1))
        self._places: OrderedDict[bytes, int] = OrderedDict()
        self.num_blocks = num_blocks
        self.num_evicted = 0

    def __len__(self) -> int:
        return len(self._places)

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        """Places of the longest held prefix of `hashes`."""
        places = []
        for key in hashes:
            place = self._places.get(key)
            if place is None:
                break
            places.append(place)
        self._touch(hashes[: len(places)])
        return places

    def insert(self, hashes: Sequence[bytes]) -> list[tuple[int, int]]:
        """Take places for those blocks of a prefix that are not held yet.

        Returns (position in `hashes`, place) pairs to be filled by the caller at once. A prefix longer than the pool
        keeps its start.
        """
        kept = hashes[: self.num_blocks]
        self._touch([key for key in kept if key in self._places])
        missing = [(i, key) for i, key in enumerate(kept) if key not in self._places]
        fresh = [(i, self._take(key)) for i, key in missing]
        self._touch(kept)
        return fresh

    def clear(self) -> None:
        """Forget everything."""
        self._free.extend(self._places.values())
        self._places.clear()

    def check_invariants(self) -> None:
        """Every place is either free or held once."""
        places = sorted([*self._free, *self._places.values()])
        assert places == list(range(self.num_blocks)), places

    def _take(self, key: bytes) -> int:
        if self._free:
            place = self._free.pop()
        else:
            _, place = self._places.popitem(last=False)
            self.num_evicted += 1
        self._places[key] = place
        return place

    def _touch(self, hashes: Sequence[bytes]) -> None:
        for key in reversed(hashes):
            self._places.move_to_end(key)
