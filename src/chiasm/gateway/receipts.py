"""The receipts of recent requests."""

import time
from collections import OrderedDict
from collections.abc import Callable

from chiasm.observability.receipt import Receipt
from chiasm.tenancy.keys import ANONYMOUS


class ReceiptRing:
    """Keeps the last `max_receipts`, by request id, none for longer than `ttl_s`."""

    def __init__(
        self, max_receipts: int, ttl_s: float = float("inf"), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_receipts = max_receipts
        self._ttl_s = ttl_s
        self._clock = clock
        self._receipts: OrderedDict[str, tuple[Receipt, str, float]] = OrderedDict()

    def __len__(self) -> int:
        self._expire()
        return len(self._receipts)

    def add(self, receipt: Receipt, tenant: str = ANONYMOUS) -> None:
        """Keep a tenant's receipt and forget the oldest when there are too many."""
        self._receipts[receipt.request_id] = (receipt, tenant, self._clock())
        if len(self._receipts) > self._max_receipts:
            self._receipts.popitem(last=False)

    def get(self, request_id: str, tenant: str | None = None) -> Receipt | None:
        """The receipt of a request; None when it is unknown, forgotten, or another tenant's where one is named."""
        self._expire()
        receipt, owner, _ = self._receipts.get(request_id, (None, None, 0.0))
        return receipt if tenant is None or tenant == owner else None

    def latest(self, max_count: int, tenant: str | None = None) -> list[Receipt]:
        """The newest receipts, newest first, of a tenant or of all."""
        return [receipt for _, receipt in self.latest_with_tenants(max_count, tenant)]

    def latest_with_tenants(self, max_count: int, tenant: str | None = None) -> list[tuple[str, Receipt]]:
        """The newest receipts and whose they are, newest first."""
        self._expire()
        newest = (
            (owner, receipt)
            for receipt, owner, _ in reversed(self._receipts.values())
            if tenant is None or tenant == owner
        )
        return [one for one, _ in zip(newest, range(max_count), strict=False)]

    def forget_tenant(self, tenant: str) -> int:
        """Forget all receipts of a tenant; returns how many there were."""
        gone = [name for name, (_, owner, _) in self._receipts.items() if owner == tenant]
        for name in gone:
            del self._receipts[name]
        return len(gone)

    def _expire(self) -> None:
        """Forget what is too old. The order is that of time."""
        oldest_s = self._clock() - self._ttl_s
        while self._receipts and next(iter(self._receipts.values()))[2] <= oldest_s:
            self._receipts.popitem(last=False)
