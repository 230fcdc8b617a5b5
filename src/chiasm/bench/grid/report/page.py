"""A report as one HTML page that needs nothing else."""

from collections.abc import Iterator
from html import escape

import msgspec

from chiasm.bench.grid.report.data import Report
from chiasm.bench.grid.report.heatmap import heat_map, legend
from chiasm.bench.grid.report.markdown import best_and_worst, conditions, ms
from chiasm.bench.grid.report.style import CSS, HATCH
from chiasm.bench.grid.results import FIGURES, LONG_NAMES, SHORT_NAMES, CellResult, Figure, TopologyResult
from chiasm.bench.statistics.intervals import Interval

_READING = (
    "Each square is a kind of request at one load: above, how much lower the mean latency is than the baseline's; "
    "below, the 95 % interval. Squares whose interval has both signs decide nothing. Hatched: latency grew for as "
    "long as the load lasted, so that a mean would only say how long that was. A question mark: the client sent late. "
    "An exclamation mark: requests failed, and the gain is of those that both answered."
)


def html_of(report: Report) -> str:
    """The page."""
    title = escape(report.grid.title)
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">""",
            f"<title>{title}</title><style>{CSS}</style></head><body>{HATCH}",
            f"<h1>{title}</h1>",
            *_top(report),
            *_maps(report),
            *_notable(report),
            *_cells(report),
            *_grid(report),
            "</body></html>\n",
        ]
    )


def _top(report: Report) -> Iterator[str]:
    if report.grid.note:
        yield f"<p>{escape(report.grid.note)}</p>"
    yield "".join(f'<p class="dim">{escape(sentence)}</p>' for sentence in conditions(report))
    yield f"<h2>Against {escape(report.grid.baseline)}</h2>"
    rows = [
        [
            f'<td class="left">{escape(one.topology)}</td><td class="left">{LONG_NAMES[one.figure]}</td>',
            f"{_count(one.num_better, 'good')}{_count(one.num_worse, 'bad')}<td>{one.num_undecided}</td>",
            f"<td>{one.num_unstable}</td><td>{best_and_worst(one.best, one.worst)}</td>",
        ]
        for one in report.scores
    ]
    heads = ("topology", "figure", "cells better", "worse", "undecided", "does not keep up", "best and worst gain")
    yield _table(heads, ["".join(row) for row in rows], 2)
    if report.tally:
        yield "<h2>Promises</h2>"
        counted = [
            f'<td class="left wrap">{escape(promise)}</td>{_count(counts["kept"], "good")}'
            f"<td>{counts['open']}</td>{_count(counts['broken'], 'bad')}"
            for promise, counts in report.tally.items()
        ]
        yield _table(("promise, in how many cells", "kept", "open", "broken"), counted, 1)


def _count(number: int, kind: str) -> str:
    return f'<td class="{kind}">{number}</td>' if number else "<td>0</td>"


def _maps(report: Report) -> Iterator[str]:
    grid = report.grid
    for figure in FIGURES:
        yield f"<h2>Gain in {LONG_NAMES[figure]}</h2>"
        yield f'<p class="dim">{_READING}</p>{legend()}' if figure == FIGURES[0] else legend()
        for name in grid.names:
            if name == grid.baseline:
                continue
            for cache in grid.caches:
                warm = " with warm caches" if cache == "warm" else ""
                yield f"<h3>{escape(name)} against {escape(grid.baseline)}{warm}</h3><div class='maps'>"
                for load in grid.loads or grid.rates:
                    drawn = heat_map(grid, report.cells, name, figure, load, cache)
                    yield f"<figure><figcaption>{escape(_load(report, load))}</figcaption>{drawn}</figure>"
                yield "</div>"


def _load(report: Report, load: float) -> str:
    grid = report.grid
    return f"{load:.0%} of {grid.baseline}'s capacity" if grid.is_by_share else f"{load:g} requests per second"


def _notable(report: Report) -> Iterator[str]:
    broken = [one for one in report.judgements if one.outcome == "broken"]
    if broken:
        yield "<h2>Broken promises</h2><ul>"
        for one in broken:
            ratio = one.ratio
            how = "which keeps up" if ratio is None else f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
            yield f"<li>{escape(f'{one.cell}: {one.promise}; against {one.other}, {how}')}</li>"
        yield "</ul>"
    if report.losses:
        yield f"<h2>Where a split loses to {escape(report.grid.baseline)}, and why</h2><ul>"
        yield from (f"<li>{escape(f'{one.cell}: {one.topology}; {one.bound_by}')}</li>" for one in report.losses)
        yield "</ul>"


def _cells(report: Report) -> Iterator[str]:
    names = report.grid.names
    yield '<h2>All cells</h2><p class="dim">Mean in ms, its interval, and the share of a core of each process.</p>'
    rows = []
    for result in report.cells:
        for figure in FIGURES:
            means = "".join(f"<td>{_mean(result, name, figure)}</td>" for name in names)
            head = f'<td class="left">{escape(str(result.cell))}</td><td>{result.rate_per_s:.2f}</td>'
            rows.append(f'{head}<td>{result.num_seeds}</td><td class="left">{SHORT_NAMES[figure]}</td>{means}')
        used = "".join(f'<td class="range">{_used(result.topologies[name])}</td>' for name in names)
        rows.append(f'<td></td><td></td><td></td><td class="left range">CPU</td>{used}')
    yield _table(("cell", "requests/s", "seeds", "", *names), rows, 1)


def _mean(result: CellResult, name: str, figure: Figure) -> str:
    one = result.topologies[name]
    if one.verdict == "unstable":
        return '<span class="bad">does not keep up</span>'
    mean = one.mean_s.get(figure)
    if mean is None:
        return "-"
    kind = _kind(one.gain.get(figure))
    late = " ?" if one.verdict == "invalid" else ""
    failed = f'<br><span class="bad">{one.num_failed} failed</span>' if one.num_failed else ""
    return f'<span class="{kind}">{ms(mean.value)}{late}</span><br><span class="range">{_range(mean)}</span>{failed}'


def _kind(gain: Interval | None) -> str:
    if gain is None or gain.low <= 0 <= gain.high:
        return ""
    return "good" if gain.low > 0 else "bad"


def _used(one: TopologyResult) -> str:
    return "<br>".join(f"{escape(name)} {share:.0%}" for name, share in one.used.items()) or "-"


def _range(mean: Interval) -> str:
    return f"{ms(mean.low)} to {ms(mean.high)}"


def _grid(report: Report) -> Iterator[str]:
    if report.capacities:
        yield f"<details><summary>Capacity of {escape(report.grid.baseline)}, requests per second</summary>"
        rows = [f'<td class="left">{escape(str(one.kind))}</td><td>{one.per_s:.2f}</td>' for one in report.capacities]
        yield f"{_table(('kind', 'requests/s'), rows, 1)}</details>"
    spec = msgspec.json.format(msgspec.json.encode(report.grid)).decode()
    yield f"<details><summary>The grid, as it was measured</summary><pre>{escape(spec)}</pre></details>"
    yield f"<h2>Again</h2><pre>{escape(report.command)}</pre>"


def _table(heads: tuple[str, ...], rows: list[str], num_left: int) -> str:
    head = "".join(
        f'<th scope="col"{" class=left" if number < num_left else ""}>{escape(name)}</th>'
        for number, name in enumerate(heads)
    )
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
