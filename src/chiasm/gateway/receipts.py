"""The receipts of recent requests."""

from collections import OrderedDict

from chiasm.observability.receipt import Receipt


class ReceiptRing:
    """Keeps the last `max_receipts`, by request id."""

    def __init__(self, max_receipts: int) -> None:
        self._max_receipts = max_receipts
        self._receipts: OrderedDict[str, Receipt] = OrderedDict()

    def add(self, receipt: Receipt) -> None:
        """Keep a receipt and forget the oldest when there are too many."""
        self._receipts[receipt.request_id] = receipt
        if len(self._receipts) > self._max_receipts:
            self._receipts.popitem(last=False)

    def get(self, request_id: str) -> Receipt | None:
        """The receipt of a request, or None when it is unknown or forgotten."""
        return self._receipts.get(request_id)

    def latest(self, max_count: int) -> list[Receipt]:
        """The newest receipts, newest first."""
        newest = reversed(self._receipts.values())
        return [receipt for receipt, _ in zip(newest, range(max_count), strict=False)]
