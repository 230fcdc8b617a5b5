"""Which parts of the arena are in use: first fit, so that memory already backed by pages is used again first."""

from bisect import bisect_left


class Extents:
    """Allocates ranges of `num_bytes`, in multiples of `unit_bytes`. Not thread-safe."""

    def __init__(self, num_bytes: int, unit_bytes: int) -> None:
        self._unit_bytes = unit_bytes
        self._free = [(0, num_bytes // unit_bytes)]  # (start, length) in units, in order, no two adjacent

    @property
    def num_free_bytes(self) -> int:
        """Bytes not in use."""
        return sum(length for _, length in self._free) * self._unit_bytes

    def take(self, num_bytes: int) -> int | None:
        """Return where a range starts that is now in use, None when no gap is wide enough."""
        units = -(-num_bytes // self._unit_bytes) or 1
        for index, (start, length) in enumerate(self._free):
            if length >= units:
                self._free[index : index + 1] = [(start + units, length - units)] if length > units else []
                return start * self._unit_bytes
        return None

    def give_back(self, offset: int, num_bytes: int) -> None:
        """Free a range that `take` returned for as many bytes."""
        start, end = offset // self._unit_bytes, offset // self._unit_bytes + self._units(num_bytes)
        first = last = bisect_left(self._free, (start, 0))
        if first and sum(self._free[first - 1]) == start:
            first -= 1
            start = self._free[first][0]
        if last < len(self._free) and self._free[last][0] == end:
            end = sum(self._free[last])
            last += 1
        self._free[first:last] = [(start, end - start)]

    def _units(self, num_bytes: int) -> int:
        return max(1, -(-num_bytes // self._unit_bytes))
