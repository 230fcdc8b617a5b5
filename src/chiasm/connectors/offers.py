"""What a process offers, by key: the quota and the expiry that all transports share."""

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec
import numpy as np

from chiasm.connectors.base import Buffer
from chiasm.errors import OverloadedError

T = TypeVar("T")
SWEEP_INTERVAL_S = 1.0


class Offer(msgspec.Struct, Generic[T]):
    """One tensor that others may take until `expires_at`, in time of the book's clock."""

    value: T
    num_bytes: int
    expires_at: float


def is_equal(first: Buffer, second: Buffer) -> bool:
    """Compare bytes; memoryview's own comparison takes thirty times as long."""
    return np.array_equal(np.frombuffer(first, np.uint8), np.frombuffer(second, np.uint8))


class OfferBook(Generic[T]):
    """Offers by key. Not thread-safe: the transport's lock guards it.

    No thread watches the clock. What has expired is never handed out, and is given to `retire` when a second has
    passed since the last look or its room is needed.
    """

    def __init__(self, max_bytes: int, retire: Callable[[T], None], clock: Callable[[], float]) -> None:
        self._max_bytes = max_bytes
        self._retire = retire
        self._clock = clock
        self._offers: dict[str, Offer[T]] = {}
        self._used_bytes = 0
        self._next_sweep_at = 0.0

    def __len__(self) -> int:
        self.sweep()
        return len(self._offers)

    def find(self, key: str) -> Offer[T] | None:
        """Return what is offered under the key and has not expired."""
        offer = self._offers.get(key)
        return offer if offer is not None and offer.expires_at > self._clock() else None

    def make_room(self, num_bytes: int) -> None:
        """Retire what has expired, as far as needed. Raises `OverloadedError` when the quota is used up."""
        if self._clock() >= self._next_sweep_at or self._used_bytes + num_bytes > self._max_bytes:
            self.sweep()
        if self._used_bytes + num_bytes > self._max_bytes:
            raise OverloadedError(
                f"{self._used_bytes} of {self._max_bytes} bytes are offered to other workers; {num_bytes} do not fit",
                hint="Raise transfer.max_bytes or lower transfer.ttl_s",
            )

    def add(self, key: str, value: T, num_bytes: int, expires_at: float) -> None:
        """Offer under a key that is free."""
        assert key not in self._offers, "remove it first"
        self._offers[key] = Offer(value, num_bytes, expires_at)
        self._used_bytes += num_bytes

    def remove(self, key: str) -> None:
        """Retire an offer. Harmless when there is none."""
        offer = self._offers.pop(key, None)
        if offer is not None:
            self._used_bytes -= offer.num_bytes
            self._retire(offer.value)

    def sweep(self) -> None:
        """Retire everything that has expired."""
        now = self._clock()
        self._next_sweep_at = now + SWEEP_INTERVAL_S
        for key in [key for key, offer in self._offers.items() if offer.expires_at <= now]:
            self.remove(key)

    def clear(self) -> None:
        """Retire everything."""
        for key in list(self._offers):
            self.remove(key)
