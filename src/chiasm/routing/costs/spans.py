"""Arithmetic of spans."""

from collections.abc import Collection, Iterable

from chiasm.observability.receipt import Span

ENCODE_STAGES = ("decode_media", "prepare", "encode")


def busy_intervals(spans: Iterable[Span], stages: Collection[str] | None = None) -> list[tuple[float, float]]:
    """Where any of the stages was active: disjoint intervals in order."""
    merged: list[tuple[float, float]] = []
    chosen = [span for span in spans if stages is None or span.stage in stages]
    for span in sorted(chosen, key=lambda one: one.start_s):
        if merged and span.start_s <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], span.end_s))
        else:
            merged.append((span.start_s, span.end_s))
    return merged


def busy_s(spans: Iterable[Span], stages: Collection[str]) -> float:
    """Seconds in which any of the stages was active."""
    return sum(end_s - start_s for start_s, end_s in busy_intervals(spans, stages))


def gaps(spans: Iterable[Span], start_s: float, end_s: float, stage: str) -> list[Span]:
    """Spans of `stage` for what the given ones leave uncovered of an interval."""
    found: list[Span] = []
    for busy_start_s, busy_end_s in [*busy_intervals(spans), (end_s, end_s)]:
        if busy_start_s > start_s:
            found.append(Span(stage, start_s, min(busy_start_s, end_s)))
        start_s = max(start_s, busy_end_s)
        if start_s >= end_s:
            break
    return found
