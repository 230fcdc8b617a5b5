"""What a store does. All that it holds may be lost at any time: it is shared, not kept."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

MAX_ENTRIES = 4096
"""Of a topic; the oldest go."""
MAX_TOPIC_BYTES = 32 * 2**20
"""Of all payloads of a topic; the oldest go, but for the newest."""
TTL_S: Mapping[str, float] = {"acts": 86_400.0, "content": 600.0}
"""By topic, how long its entries are kept at most."""
FIRST = "0-0"
"""The position before all entries of a topic."""


class RateAsk(msgspec.Struct, frozen=True, kw_only=True):
    """A gateway wants a slice of what a limit allows all gateways together.

    Attributes:
        key: Which limit of which tenant.
        per_minute: How fast its bucket fills.
        most: How much it holds at most, and at first.
        returned: A slice given back; negative for what was used beyond one.
        needed: The least that helps; nothing is given where less is there.
        wanted: What is given at most; 0 only settles.
    """

    key: str
    per_minute: float
    most: float
    returned: float = 0.0
    needed: float = 0.0
    wanted: float = 0.0


class RateGrant(msgspec.Struct, frozen=True):
    """A slice, and when what was needed will be there, where it was not."""

    amount: float
    wait_s: float = 0.0


class PermitAsk(msgspec.Struct, frozen=True, kw_only=True):
    """How many requests of a tenant a gateway wants to have open; `using` are, whatever the answer is.

    `most` is what all gateways may hold together. Permits of a gateway that is not announced any more are void.
    """

    key: str
    most: int
    using: int
    wanted: int


class Entry(msgspec.Struct, frozen=True):
    """What a gateway has published. Positions of one topic rise, see `order_of`."""

    position: str
    by: str
    payload: bytes


class Store(Protocol):
    """Shared state, as one gateway sees it. Every method raises `ConnectionError` where the store does not answer.

    Attributes:
        name: This gateway's, among all that ever used the store.
        is_shared: Whether other gateways may be there.
    """

    name: str
    is_shared: bool

    async def announce(self, record: bytes, ttl_s: float) -> Mapping[str, bytes]:
        """Say that this gateway is there for `ttl_s` from now, and how it is. Returns all that are, by name."""
        ...

    async def leave(self) -> None:
        """Take this gateway's announcement and permits back."""
        ...

    async def draw(self, asks: Sequence[RateAsk]) -> list[RateGrant]:
        """Settle slices of rates, each at once; one answer per ask."""
        ...

    async def hold(self, asks: Sequence[PermitAsk]) -> list[int]:
        """Hold permits from now on, instead of those held before. Returns how many of each: `using` at least."""
        ...

    async def publish(self, topic: str, payload: bytes) -> str:
        """Tell all gateways. Returns the position. A topic keeps a bounded number of entries, for a bounded time."""
        ...

    async def read(self, topic: str, after: str, max_entries: int) -> list[Entry]:
        """The oldest entries behind a position, one's own, too."""
        ...

    async def clear(self, topic: str) -> None:
        """Forget all entries of a topic. Positions go on rising."""
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...


def order_of(position: str) -> tuple[int, int]:
    """What positions compare by. Raises `ValueError`."""
    first, _, second = position.partition("-")
    return int(first), int(second)
