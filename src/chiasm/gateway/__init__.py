"""The HTTP front: OpenAI API, authentication, admission, deadlines, streaming, receipts.

Knows an engine only as a `Worker` and media only as items with an identity. Every accepted request ends exactly once:
finished, cancelled, or with one coded error; the receipt and the counters are written at that one place (`exchange`).
"""

from chiasm.gateway.app import create_app

__all__ = ["create_app"]
