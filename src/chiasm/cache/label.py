"""Whose a cached thing is and what it was made of, so that it can be deleted by either."""

from collections import deque
from typing import NamedTuple

from chiasm.protocol.deletion import Deletion

_MAX_RECENT = 1024


class CacheLabel(NamedTuple):
    """The scope in which something was left, and the identities of the media it was made of."""

    cache_salt: str = ""
    media: frozenset[str] = frozenset()

    def is_covered(self, deletion: Deletion) -> bool:
        """Whether the deletion means this."""
        return deletion.covers(self.cache_salt, self.media)


class Deletions:
    """The last deletions: what was begun before one of them must leave nothing that it covers. Not thread-safe."""

    def __init__(self, max_recent: int = _MAX_RECENT) -> None:
        self._recent: deque[tuple[float, Deletion]] = deque(maxlen=max_recent)

    def add(self, deletion: Deletion, now_s: float) -> None:
        """Note a deletion; times never decrease."""
        self._recent.append((now_s, deletion))

    def cover(self, label: CacheLabel, begun_s: float) -> bool:
        """Whether what work that began at `begun_s` would leave has been deleted since."""
        for at_s, deletion in reversed(self._recent):
            if at_s < begun_s:
                return False
            if label.is_covered(deletion):
                return True
        return False
