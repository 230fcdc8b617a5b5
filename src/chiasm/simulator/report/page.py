"""Summaries of fleets as a page, and as Markdown."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from chiasm.simulator.report.charts import Tail, Use, tails, uses
from chiasm.simulator.report.style import CSS
from chiasm.simulator.summary import ClassSummary, Objective, Percentiles, Summary

_HEADS = (
    "fleet", "class", "TTFT mean", "p50", "p95", "p99", "TPOT p50", "E2EL p50", "p95", "good", "failed", "fleet /s",
)  # fmt: skip
_READING = (
    "Times in milliseconds. Bars: the median, and in a lighter shade up to the 99th percentile, with marks at the 90th "
    "and the 95th; a dashed line is what was demanded. Good: met what was demanded; fleet /s: good ones of all classes."
)


def document(title: str, body: Iterable[str]) -> str:
    """A page that needs nothing from elsewhere; `body` is HTML."""
    name = escape(title)
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">""",
            f"<title>{name}</title><style>{CSS}</style></head><body>",
            f"<h1>{name}</h1>",
            *body,
            "</body></html>\n",
        ]
    )


def html_of(summaries: Sequence[Summary], objective: Objective, notes: Sequence[str] = ()) -> str:
    """Charts by class, use of stages, and all numbers."""
    body = [*(f'<p class="dim">{escape(note)}</p>' for note in notes), *charts(summaries, objective)]
    return document("Simulated fleets", [*body, "<h2>Numbers</h2>", table(summaries)])


def charts(summaries: Sequence[Summary], objective: Objective) -> Iterator[str]:
    """Latencies of each class on each fleet, and how busy their stages are."""
    yield f'<h2>Latency</h2><p class="dim">{_READING}</p><div class="charts">'
    for name in dict.fromkeys(one.name for summary in summaries for one in summary.classes):
        rows = [(summary, one) for summary in summaries for one in summary.classes if one.name == name]
        first = [_tail(summary, one.ttft_s) for summary, one in rows]
        later = [_tail(summary, one.tpot_s) for summary, one in rows if one.tpot_s is not None]
        yield tails(f"{name}: time to the first token", first, 1e3 * objective.ttft_s)
        if later:
            yield tails(f"{name}: time per token after it", later, 1e3 * objective.tpot_s)
        yield tails(f"{name}: time to the last token", [_tail(summary, one.e2el_s) for summary, one in rows])
    yield '</div><h2>Use</h2><p class="dim">Of the busiest worker at each stage.</p><div class="charts">'
    for summary in summaries:
        rows_of = [Use("", stage, share) for stage, share in summary.utilisation.items()]
        if rows_of:
            yield uses(summary.cluster, rows_of)
    yield "</div>"


def table(summaries: Sequence[Summary]) -> str:
    """All numbers, a row for each class of each fleet."""
    heads = "".join(f'<th class="{_side(place)}">{head}</th>' for place, head in enumerate(_HEADS))
    rows = [
        "".join(f'<td class="{_side(place)}">{escape(cell)}</td>' for place, cell in enumerate(cells))
        for cells in _rows(summaries)
    ]
    lines = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>'


def markdown_of(summaries: Sequence[Summary], notes: Sequence[str] = ()) -> str:
    """The table."""
    lines = ["# Simulated fleets", "", *(f"{note}\n" for note in notes), f"| {' | '.join(_HEADS)} |"]
    lines.append("|---|---|" + "---:|" * (len(_HEADS) - 2))
    lines += [f"| {' | '.join(map(_plain, cells))} |" for cells in _rows(summaries)]
    return "\n".join([*lines, "", "Times in milliseconds.", ""])


def _plain(cell: str) -> str:
    """Names of classes come from files, and are no markup."""
    return " ".join(cell.split()).replace("|", "\\|").replace("<", "&lt;")


def _rows(summaries: Sequence[Summary]) -> Iterator[tuple[str, ...]]:
    for summary in summaries:
        for place, one in enumerate(summary.classes):
            yield _row(summary, one, "" if place else f"{summary.goodput_per_s:.2f}")


def _row(summary: Summary, one: ClassSummary, goodput: str) -> tuple[str, ...]:
    """Goodput is the whole fleet's, and stands in its first row."""
    name = summary.cluster if summary.is_stable else f"{summary.cluster} (does not keep up)"
    first, whole = one.ttft_s, one.e2el_s
    tpot = f"{1e3 * one.tpot_s.p50:.1f}" if one.tpot_s is not None else ""
    times = (first.mean, first.p50, first.p95, first.p99)
    return (
        name,
        one.name,
        *(f"{1e3 * value:.0f}" for value in times),
        tpot,
        f"{1e3 * whole.p50:.0f}",
        f"{1e3 * whole.p95:.0f}",
        f"{one.attained:.0%}",
        str(one.num_failed),
        goodput,
    )


def _tail(summary: Summary, found: Percentiles) -> Tail:
    p50, p90, p95, p99 = (1e3 * value for value in (found.p50, found.p90, found.p95, found.p99))
    return Tail(summary.cluster, p50, p90, p95, p99, keeps_up=summary.is_stable)


def _side(place: int) -> str:
    return "left" if place < 2 else ""
