"""What a producer's worker offers: bounded, least recently used out first, with a receipt for each."""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Literal, cast

from chiasm.connectors.base import Buffer, Transport, checksum
from chiasm.engines.vllm.ec.announcement import Announcement, Layout
from chiasm.engines.vllm.ec.receipts import Receipt, ReceiptWriter
from chiasm.errors import ChiasmError, OverloadedError


class PublishedStore:
    """Bounded by the transport's quota. For one thread.

    What was published or asked for within the last `hold_s` makes no room for others: its consumers are on their way.
    """

    def __init__(
        self,
        transport: Transport,
        receipts: ReceiptWriter,
        *,
        ttl_s: float,
        hold_s: float,
        max_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = transport
        self._receipts = receipts
        self._ttl_s = ttl_s
        self._hold_s = hold_s
        self._max_bytes = max_bytes
        self._clock = clock
        self._published_at: OrderedDict[str, float] = OrderedDict()  # oldest first
        names = ("published", "published_bytes", "publish_seconds", "refused_offers", "evicted")
        self._totals = dict.fromkeys(names, 0.0)

    def publish(self, identity: str, layout: Layout, data: Buffer) -> None:
        """Offer a copy of the bytes, or what is on offer already if it is that, and write its receipt.

        Where they cannot be offered, the receipt says why.
        """
        started_at = self._clock()
        expires_at = started_at + self._ttl_s
        self._expire(started_at)
        try:
            address = self._put(identity, data, layout.num_bytes)
        except ChiasmError as error:
            self._forget(identity)
            self._totals["refused_offers"] += 1
            self._receipts.write(identity, Receipt(error=error.code, expires_at=expires_at, totals=self._totals))
            return
        self._published_at[identity] = started_at
        self._published_at.move_to_end(identity)
        self._totals["published"] += 1
        self._totals["published_bytes"] += layout.num_bytes
        announcement = Announcement(
            transport=cast("Literal['shm', 'tcp']", self._transport.kind),
            address=address,
            layout=layout,
            checksum=checksum(data),
        )
        self._totals["publish_seconds"] += self._clock() - started_at
        receipt = Receipt(announcement=announcement, expires_at=expires_at, totals=self._totals)
        self._receipts.write(identity, receipt)

    def forget(self) -> int:
        """Take back all offers; returns how many. Who is reading one keeps what it reads."""
        offered = list(self._published_at)
        for identity in offered:
            self._forget(identity)
            self._transport.drop(identity)
        return len(offered)

    def close(self) -> None:
        """Offer nothing more."""
        self._transport.close()
        self._receipts.close()

    def _put(self, identity: str, data: Buffer, num_bytes: int) -> str:
        if num_bytes > self._max_bytes:  # emptying the store would not help
            raise OverloadedError(f"{num_bytes} bytes do not fit {self._max_bytes}", hint="Raise max_bytes")
        while True:
            try:
                return self._transport.put(identity, data, ttl_s=self._ttl_s)
            except OverloadedError:
                oldest = next(iter(self._published_at), None)
                if oldest is None or self._published_at[oldest] + self._hold_s > self._clock():
                    raise
                self._forget(oldest)
                self._transport.drop(oldest)
                self._totals["evicted"] += 1

    def _expire(self, now: float) -> None:
        while self._published_at and next(iter(self._published_at.values())) + self._ttl_s <= now:
            self._forget(next(iter(self._published_at)))

    def _forget(self, identity: str) -> None:
        self._published_at.pop(identity, None)
        self._receipts.remove(identity)
