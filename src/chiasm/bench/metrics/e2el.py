"""E2EL, end to end latency: from the scheduled start to the end of the answer.

    e2el = end - scheduled
    wire_e2el = end - sent

The end is that of the HTTP response: after the usage chunk and the end mark of a stream.
"""

from chiasm.bench.record import Record


def e2el_s(record: Record) -> float | None:
    """Seconds from the scheduled start; None for a request that did not finish."""
    return (record.end_ns - record.scheduled_ns) / 1e9 if record.is_finished else None


def wire_e2el_s(record: Record) -> float | None:
    """Seconds from the send."""
    return (record.end_ns - record.sent_ns) / 1e9 if record.is_finished else None
