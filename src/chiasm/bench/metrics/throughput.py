"""Throughput: what finished inside the window in which measured requests were due, whenever it was sent.

    request throughput = finished requests with end in window / window
    token throughput   = their output tokens / window

The window runs from the first to the last scheduled start of measured requests. Counting by the end keeps both the ramp
before it and the emptying after it out. Under a stable load it is the arrival rate; under an overload it is the
capacity. A closed loop has no schedule: its window is from the first send to the last end.
"""

from collections.abc import Sequence

import msgspec

from chiasm.bench.record import Record


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """Rates over a window."""

    window_s: float
    requests_per_s: float
    output_tokens_per_s: float
    body_mb_per_s: float


def window_ns(records: Sequence[Record]) -> tuple[int, int]:
    """From the first to the last scheduled start of measured requests."""
    starts = [record.scheduled_ns for record in records if record.phase == "measured"]
    return min(starts), max(starts)


def throughput(records: Sequence[Record], window: tuple[int, int]) -> Throughput:
    """Rates of what ended inside `window`, all phases."""
    left, right = window
    window_s = max(right - left, 1) / 1e9
    ended = [record for record in records if record.is_finished and left <= record.end_ns <= right]
    return Throughput(
        window_s=window_s,
        requests_per_s=len(ended) / window_s,
        output_tokens_per_s=sum(record.num_output_tokens for record in ended) / window_s,
        body_mb_per_s=sum(record.num_body_bytes for record in ended) / window_s / 1e6,
    )
