"""What a process offers, by key: the quota and the expiry that all transports share."""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import msgspec
import numpy as np

from chiasm.connectors.base import Buffer
from chiasm.errors import OverloadedError

T = TypeVar("T")
SWEEP_INTERVAL_S = 1.0


class Shelf(Protocol[T]):
    """Where one kind of transport keeps what it offers; `T` is what it knows a tensor by. Times are of its clock."""

    def place(self, key: str, data: memoryview, expires_at: float) -> T:
        """Copy bytes to where others can take them. Raises `OverloadedError` when there is no room."""
        ...

    def holds(self, value: T, data: memoryview) -> bool:
        """Whether these are the very bytes."""
        ...

    def renew(self, value: T, data: memoryview, expires_at: float) -> None:
        """Move the expiry of a tensor that holds `data`."""
        ...

    def is_released(self, value: T) -> bool:
        """Whether its reader has said that nobody will take it any more."""
        ...

    def retire(self, value: T) -> None:
        """Offer it no longer, and free what it takes up."""
        ...


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

    No thread watches the clock. What has expired is never handed out; that and what its reader has released is retired
    when a second has passed since the last look, or its room is needed.
    """

    def __init__(self, max_bytes: int, shelf: Shelf[T], clock: Callable[[], float]) -> None:
        self._max_bytes = max_bytes
        self._shelf = shelf
        self._clock = clock
        self._offers: dict[str, Offer[T]] = {}
        self._used_bytes = 0
        self._next_sweep_at = 0.0

    def __len__(self) -> int:
        self.sweep()
        return len(self._offers)

    @property
    def used_bytes(self) -> int:
        """What is on offer takes."""
        return self._used_bytes

    def put(self, key: str, data: Buffer, ttl_s: float) -> T:
        """Offer a copy; renew it when the very bytes are on offer under the key, and replace any others.

        Raises:
            OverloadedError: The quota is used up by what is still on offer.
        """
        view, now = memoryview(data).cast("B"), self._clock()
        num_bytes, expires_at = view.nbytes, now + ttl_s
        offer = self._offers.get(key)
        if offer is not None:
            if offer.expires_at > now and self._shelf.holds(offer.value, view):
                offer.expires_at = expires_at
                self._shelf.renew(offer.value, view, expires_at)
                return offer.value
            self.remove(key)
        if now >= self._next_sweep_at or self._used_bytes + num_bytes > self._max_bytes:
            self._make_room(num_bytes)
        value = self._shelf.place(key, view, expires_at)
        self._offers[key] = Offer(value, num_bytes, expires_at)
        self._used_bytes += num_bytes
        return value

    def find(self, key: str) -> Offer[T] | None:
        """Return what is offered under the key and has not expired."""
        offer = self._offers.get(key)
        return offer if offer is not None and offer.expires_at > self._clock() else None

    def remove(self, key: str) -> bool:
        """Retire an offer, if there is one; says whether it could still be taken until now."""
        offer = self._offers.pop(key, None)
        if offer is None:
            return False
        is_good = offer.expires_at > self._clock() and not self._shelf.is_released(offer.value)
        self._used_bytes -= offer.num_bytes
        self._shelf.retire(offer.value)
        return is_good

    def sweep(self) -> None:
        """Retire everything that has expired or been released."""
        now = self._clock()
        self._next_sweep_at = now + SWEEP_INTERVAL_S
        for key, offer in list(self._offers.items()):
            if offer.expires_at <= now or self._shelf.is_released(offer.value):
                self.remove(key)

    def clear(self) -> None:
        """Retire everything."""
        for key in list(self._offers):
            self.remove(key)

    def _make_room(self, num_bytes: int) -> None:
        self.sweep()
        if self._used_bytes + num_bytes > self._max_bytes:
            raise OverloadedError(
                f"{self._used_bytes} of {self._max_bytes} bytes are offered to other workers; {num_bytes} do not fit",
                hint="Raise transfer.max_bytes or lower transfer.ttl_s",
            )
