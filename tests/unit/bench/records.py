"""Records with known instants."""

from chiasm.bench.record import FINISHED, Record

MS = 1_000_000


def record(
    index=0, *, at_ms=0.0, sent_ms=None, ttft_ms=100.0, gaps_ms=(10.0,) * 4, end_ms=None, outcome=FINISHED, **fields
):
    """A streamed answer; times after `at_ms` count from there."""
    scheduled, sent = round(at_ms * MS), round((at_ms if sent_ms is None else sent_ms) * MS)
    first = scheduled + round(ttft_ms * MS)
    gaps = [round(gap * MS) for gap in gaps_ms]
    has_text = outcome == FINISHED
    defaults = {
        "request_class": "all",
        "kind": "chat",
        "phase": "measured",
        "num_body_bytes": 1000,
        "num_wanted_tokens": len(gaps) + 1,
        "num_output_tokens": len(gaps) + 1 if has_text else 0,
        "status": 200,
    }
    last = first + sum(gaps)
    defaults |= {
        "scheduled_ns": scheduled,
        "sent_ns": sent,
        "head_ns": first if has_text else None,
        "first_ns": first if has_text else None,
        "last_ns": last if has_text else None,
        "end_ns": last if end_ms is None else scheduled + round(end_ms * MS),
        "gaps_ns": gaps if has_text else [],
    }
    return Record(index=index, outcome=outcome, **(defaults | fields))
