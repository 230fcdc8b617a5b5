"""A simulated worker's caches: what was kept, and whether it still is."""

from collections import OrderedDict


class TokenCache:
    """Keeps names of things by their size in tokens; what was used longest ago leaves first. 0 keeps everything."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self.used_tokens = 0
        self.num_evicted = 0

    def has(self, name: str) -> bool:
        """Whether it is there; looking is using."""
        if not self._max_tokens:
            return True
        if name not in self._sizes:
            return False
        self._sizes.move_to_end(name)
        return True

    def keep(self, name: str, num_tokens: int) -> None:
        """Keep a thing, as far as it fits at all."""
        if not self._max_tokens or self.has(name) or num_tokens > self._max_tokens:
            return
        self._sizes[name] = num_tokens
        self.used_tokens += num_tokens
        while self.used_tokens > self._max_tokens:
            _, size = self._sizes.popitem(last=False)
            self.used_tokens -= size
            self.num_evicted += 1
