"""ITL, inter token latency: every gap between two chunks with text, over all requests.

    itl_k = chunk_k - chunk_(k-1)        k = 2..

A chunk is a token where the server sends each token at once; a gap with several tokens shows as one long gap, which is
what a reader sees. Its mean is near TPOT, its tail is not: one pause in an answer of 500 tokens moves TPOT by 1/499 of
it.
"""

from collections.abc import Iterable

from chiasm.bench.record import Record


def itl_s(records: Iterable[Record]) -> list[float]:
    """All gaps of finished requests, in seconds."""
    return [gap / 1e9 for record in records if record.is_finished for gap in record.gaps_ns]
