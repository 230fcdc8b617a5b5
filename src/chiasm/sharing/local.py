"""A store in this process: for one gateway alone, or for several in one process."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from chiasm.sharing.base import MAX_ENTRIES, MAX_TOPIC_BYTES, Entry, PermitAsk, RateAsk, RateGrant, order_of


class _Bucket:
    __slots__ = ("at_s", "level")

    def __init__(self, level: float, at_s: float) -> None:
        self.level = level
        self.at_s = at_s


class Hub:
    """What stores of one process share. Belongs to one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.records: dict[str, tuple[float, bytes]] = {}
        self.buckets: dict[str, _Bucket] = {}
        self.permits: dict[str, dict[str, int]] = {}
        self.topics: dict[str, deque[Entry]] = {}
        self.num_published = 0

    def living(self) -> dict[str, bytes]:
        """Those whose announcements have not expired."""
        now_s = self.clock()
        self.records = {name: one for name, one in self.records.items() if one[0] > now_s}
        return {name: record for name, (_, record) in self.records.items()}


class LocalStore:
    """See `Store`. Without a hub it is one gateway's own."""

    def __init__(self, name: str, hub: Hub | None = None) -> None:
        self.name = name
        self.is_shared = hub is not None
        self._hub = hub or Hub()

    async def announce(self, record: bytes, ttl_s: float) -> Mapping[str, bytes]:
        """See `Store`."""
        self._hub.records[self.name] = (self._hub.clock() + ttl_s, record)
        return self._hub.living()

    async def leave(self) -> None:
        """See `Store`."""
        self._hub.records.pop(self.name, None)

    async def draw(self, asks: Sequence[RateAsk]) -> list[RateGrant]:
        """See `Store`."""
        return [self._draw(ask) for ask in asks]

    async def hold(self, asks: Sequence[PermitAsk]) -> list[int]:
        """See `Store`."""
        return [self._hold(ask) for ask in asks]

    async def publish(self, topic: str, payload: bytes) -> str:
        """See `Store`."""
        hub = self._hub
        hub.num_published += 1
        entry = Entry(f"{hub.num_published}-0", self.name, payload)
        entries = hub.topics.setdefault(topic, deque(maxlen=MAX_ENTRIES))
        entries.append(entry)
        num_bytes = sum(len(one.payload) for one in entries)
        while num_bytes > MAX_TOPIC_BYTES and len(entries) > 1:
            num_bytes -= len(entries.popleft().payload)
        return entry.position

    async def read(self, topic: str, after: str, max_entries: int) -> list[Entry]:
        """See `Store`."""
        begin = order_of(after)
        entries = [one for one in self._hub.topics.get(topic, ()) if order_of(one.position) > begin]
        return entries[:max_entries]

    async def clear(self, topic: str) -> None:
        """See `Store`."""
        self._hub.topics.pop(topic, None)

    async def aclose(self) -> None:
        """See `Store`."""

    def _draw(self, ask: RateAsk) -> RateGrant:
        now_s, per_s = self._hub.clock(), ask.per_minute / 60
        bucket = self._hub.buckets.setdefault(ask.key, _Bucket(ask.most, now_s))
        level = min(ask.most, bucket.level + (now_s - bucket.at_s) * per_s)
        level = min(ask.most, level + ask.returned)
        is_there = level >= ask.needed
        amount = max(0.0, min(ask.wanted, level)) if is_there else 0.0
        bucket.level, bucket.at_s = level - amount, now_s
        return RateGrant(amount, 0.0 if is_there else (ask.needed - level) / per_s)

    def _hold(self, ask: PermitAsk) -> int:
        held, living = self._hub.permits.setdefault(ask.key, {}), self._hub.living()
        for name in [name for name in held if name not in living]:
            del held[name]
        others = sum(count for name, count in held.items() if name != self.name)
        held[self.name] = max(ask.using, min(ask.wanted, ask.most - others), 0)
        return held[self.name]
