"""Goodput: the highest rate at which at least 90 % of the attempted requests meet their objectives.

    attainment = requests that finished with TTFT <= limit and TPOT <= limit / attempted requests
    goodput    = max { rate : attainment(rate) >= 0.9, and the cell is stable }

TTFT counts from the scheduled start. An error, a time-out and a cancellation are attempts that missed. Both limits are
needed: under an overload of the encoder TTFT grows without bound while TPOT stays as it was. An answer of one token has
no TPOT and meets it; a request without a first token (embeddings, rerank) is held to `ttft` with its end-to-end
latency.
"""

from collections.abc import Sequence

import msgspec

from chiasm.bench.metrics.e2el import e2el_s
from chiasm.bench.metrics.tpot import tpot_s
from chiasm.bench.metrics.ttft import ttft_s
from chiasm.bench.record import Record

ATTAINMENT = 0.9


class Objectives(msgspec.Struct, frozen=True, kw_only=True):
    """Limits in seconds; None is no limit."""

    ttft_s: float | None = None
    tpot_s: float | None = None


def is_good(record: Record, limits: Objectives) -> bool:
    """Whether a request finished within its limits."""
    if not record.is_finished:
        return False
    first_s = ttft_s(record) if record.streams else e2el_s(record)
    if limits.ttft_s is not None and (first_s is None or first_s > limits.ttft_s):
        return False
    per_token_s = tpot_s(record)
    return limits.tpot_s is None or per_token_s is None or per_token_s <= limits.tpot_s


def attainment(records: Sequence[Record], limits: Objectives) -> float:
    """Share of attempted requests that are good; 0 of none."""
    return sum(is_good(record, limits) for record in records) / len(records) if records else 0.0
