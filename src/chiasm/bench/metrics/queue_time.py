"""Queue time: how long a request waited at the server before its first token, as its receipt says.

    queue time = queue + encode_queue + prefill_queue + pool_queue

Receipts are Chiasm's; without one there is no value.
"""

from chiasm.bench.record import Record

QUEUES = ("queue", "encode_queue", "prefill_queue", "pool_queue")


def queue_time_s(record: Record) -> float | None:
    """Seconds, or None without a receipt."""
    if record.receipt is None or record.receipt.ttft_s is None:
        return None
    return sum(record.receipt.stages_s.get(stage, 0.0) for stage in QUEUES)
