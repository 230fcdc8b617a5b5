"""Stages: where the time to the first token went, as receipts say, and what they do not explain.

    wire_ttft = sum(stages) + unaccounted + outside

The server accounts for `receipt.ttft = sum(stages) + unaccounted`; `outside` is what the client saw beyond that:
connecting, sending the body, the network, and the client itself.
"""

import statistics
from collections.abc import Iterable

import msgspec

from chiasm.bench.metrics.ttft import wire_ttft_s
from chiasm.bench.record import Record
from chiasm.observability.receipt import STAGES


class StageBreakdown(msgspec.Struct, frozen=True, kw_only=True):
    """Means in milliseconds over `count` requests with a receipt; a stage that a request did not pass counts as 0.

    `unaccounted_share` is the median over requests of the unaccounted part of the server's TTFT.
    """

    count: int
    stages_ms: dict[str, float]
    unaccounted_ms: float
    outside_ms: float
    ttft_ms: float
    unaccounted_share: float


def stage_breakdown(records: Iterable[Record]) -> StageBreakdown | None:
    """The breakdown, or None where no request has a receipt."""
    rows = [
        (record.receipt, record.receipt.ttft_s, wire_s)
        for record in records
        if record.receipt is not None and record.receipt.ttft_s and (wire_s := wire_ttft_s(record)) is not None
    ]
    if not rows:
        return None
    names = sorted({name for receipt, _, _ in rows for name in receipt.stages_s}, key=_place)
    return StageBreakdown(
        count=len(rows),
        stages_ms={
            name: 1e3 * statistics.fmean(receipt.stages_s.get(name, 0.0) for receipt, _, _ in rows) for name in names
        },
        unaccounted_ms=1e3 * statistics.fmean(receipt.unaccounted_s for receipt, _, _ in rows),
        outside_ms=1e3 * statistics.fmean(wire_s - ttft_s for _, ttft_s, wire_s in rows),
        ttft_ms=1e3 * statistics.fmean(wire_s for _, _, wire_s in rows),
        unaccounted_share=statistics.median(receipt.unaccounted_s / ttft_s for receipt, ttft_s, _ in rows),
    )


def _place(stage: str) -> tuple[int, str]:
    """On a request's way; stages that are not known here come last."""
    return STAGES.index(stage) if stage in STAGES else len(STAGES), stage
