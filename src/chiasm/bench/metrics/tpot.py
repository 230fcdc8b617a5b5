"""TPOT, time per output token after the first.

    tpot = (last - first) / (n - 1)

with the instants of the first and the last chunk with text, and n the output tokens that the server counted (chunks
where it does not count). None for n < 2. This is what AIPerf calls inter token latency.
"""

from chiasm.bench.record import Record


def tpot_s(record: Record) -> float | None:
    """Seconds per token."""
    if record.first_ns is None or record.last_ns is None or not record.is_finished or record.num_output_tokens < 2:
        return None
    return (record.last_ns - record.first_ns) / 1e9 / (record.num_output_tokens - 1)
