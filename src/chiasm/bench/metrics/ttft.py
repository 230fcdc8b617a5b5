"""TTFT, time to first token: from the scheduled start of a request to its first chunk with text.

    ttft = first - scheduled            what a user waits, the client's own delay included
    wire_ttft = first - sent            what the server and the network took

The difference is the send lag. A load generator that counts only from the send hides what a stalled server did to
requests that had to leave later (coordinated omission); this one sends on time, and counts from the time.
"""

from chiasm.bench.record import Record


def ttft_s(record: Record) -> float | None:
    """Seconds from the scheduled start; None without a first token, or when the answer did not come to its end."""
    return None if record.first_ns is None or not record.is_finished else (record.first_ns - record.scheduled_ns) / 1e9


def wire_ttft_s(record: Record) -> float | None:
    """Seconds from the send."""
    return None if record.first_ns is None or not record.is_finished else (record.first_ns - record.sent_ns) / 1e9
