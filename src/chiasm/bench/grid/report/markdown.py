"""A report as Markdown."""

from collections.abc import Iterator

from chiasm.bench.grid.cells import Cell
from chiasm.bench.grid.report.data import Report
from chiasm.bench.grid.results import FIGURES, SHORT_NAMES, CellResult, Figure
from chiasm.bench.statistics.intervals import Interval

_SHADES = ((0.3, "██"), (0.1, "▓▓"), (0.03, "▒▒"), (-0.03, "  "), (-0.1, "▁▁"))


def markdown_of(report: Report, level: int = 1, *, has_cells: bool = True) -> str:
    """The whole report, with headings from a level on; without the table of all cells where that is too long."""
    lines = [*_lines(report, "#" * level), *(_table(report, "#" * level) if has_cells else ())]
    return "\n".join(lines) + "\n"


def conditions(report: Report) -> list[str]:
    """What was measured on what, in sentences."""
    grid = report.grid
    done = len({result.cell for result in report.cells})
    load = f"shares of what {grid.baseline} can do" if grid.is_by_share else "requests per second"
    verdicts = ", ".join(f"{count} {name}" for name, count in sorted(report.run_verdicts.items()))
    return [
        f"{report.date}; {report.machine}.",
        f"{done} of {report.num_cells} cells, {report.num_runs} runs ({verdicts}), {report.num_requests} requests, of "
        f"which {report.num_failed} failed. A run has {grid.seconds:g} s of {grid.arrivals} arrivals or "
        f"{grid.min_requests} requests, whatever is more, after {grid.warmup_seconds:g} s that do not count; loads are "
        f"{load}; up to {grid.seeds} seeds a cell.",
        f"Gains are 1 - mean / mean of {grid.baseline}, over the same requests at the same times, from the scheduled "
        "start. Intervals are 95 %, from resampling blocks of successive requests: of cells in which nothing differs, "
        "about one in twenty seems better or worse.",
    ]


def ms(seconds: float) -> str:
    """Milliseconds to three digits or so, without the unit."""
    return f"{1e3 * seconds:.0f}" if seconds >= 0.1 else f"{1e3 * seconds:.1f}"


def _milliseconds(mean: Interval | None) -> str:
    """A mean of seconds with its interval."""
    return "-" if mean is None else f"{ms(mean.value)} ({ms(mean.low)}-{ms(mean.high)})"


def best_and_worst(best: float | None, worst: float | None) -> str:
    """Gains at the extremes."""
    return "-" if best is None or worst is None else f"{100 * best:+.0f} %, {100 * worst:+.0f} %"


def _lines(report: Report, heading: str) -> Iterator[str]:
    grid = report.grid
    yield f"{heading} {grid.title}\n"
    if grid.note:
        yield f"{grid.note}\n"
    yield "\n\n".join(conditions(report))
    yield f"\n    {report.command}\n"
    yield f"| against {grid.baseline} | | better | worse | undecided | does not keep up | best and worst gain |"
    yield "|---|---|---:|---:|---:|---:|---|"
    for score in report.scores:
        yield (
            f"| {score.topology} | {SHORT_NAMES[score.figure]} | {score.num_better} | {score.num_worse} | "
            f"{score.num_undecided} | {score.num_unstable} | {best_and_worst(score.best, score.worst)} |"
        )
    if report.tally:
        yield "\n| promise | kept | open | broken |"
        yield "|---|---:|---:|---:|"
        for promise, counts in report.tally.items():
            yield f"| {promise} | {counts['kept']} | {counts['open']} | {counts['broken']} |"
    yield from _notable(report)
    for figure in FIGURES:
        yield from _map(report, figure, heading)


def _notable(report: Report) -> Iterator[str]:
    lines = [
        f"* {one.cell}: {one.promise}: broken against {one.other}, "
        + (
            "which keeps up"
            if one.ratio is None
            else f"{one.ratio.value:.2f} ({one.ratio.low:.2f}-{one.ratio.high:.2f})"
        )
        for one in report.judgements
        if one.outcome == "broken"
    ]
    lines += [f"* {one.cell}: {one.topology} loses; {one.bound_by}" for one in report.losses]
    if lines:
        yield ""
        yield from lines


def _map(report: Report, figure: Figure, heading: str) -> Iterator[str]:
    grid, by_cell = report.grid, {result.cell: result for result in report.cells}
    columns = list(dict.fromkeys((cell.kind.images, cell.kind.tokens, cell.kind.cache) for cell in by_cell))
    if not columns:
        return
    yield f"\n{heading}# Gain in {SHORT_NAMES[figure]} over {grid.baseline}\n"
    heads = [f"{i} x {t}{', warm' if c == 'warm' else ''}" if i else "text" for i, t, c in columns]
    yield f"| topology, output, load | {' | '.join(heads)} |"
    yield "|---" * (1 + len(columns)) + "|"
    for name in grid.names:
        for output in grid.outputs if name != grid.baseline else ():
            for load in grid.loads or grid.rates:
                kinds = [_kind(by_cell, column, output, load) for column in columns]
                cells = [_shaded(result, name, figure) for result in kinds]
                if any(cells):
                    yield f"| {name}, {output}, {load:g} | {' | '.join(cells)} |"


def _kind(by_cell: dict[Cell, CellResult], column: tuple[int, int, str], output: int, load: float) -> CellResult | None:
    for cell, result in by_cell.items():
        kind = cell.kind
        if (kind.images, kind.tokens, kind.cache, kind.output, cell.load) == (*column, output, load):
            return result
    return None


def _shaded(result: CellResult | None, name: str, figure: Figure) -> str:
    if result is None:
        return ""
    one = result.topologies[name]
    gain = one.gain.get(figure)
    if gain is None:
        return "overloaded" if one.verdict == "unstable" else "-"
    shade = next((shade for limit, shade in _SHADES if gain.value >= limit), "__")
    return f"{shade} {100 * gain.value:+.0f} %".strip()


def _table(report: Report, heading: str) -> Iterator[str]:
    names = report.grid.names
    yield f"\n{heading}# All cells, mean ms\n"
    yield f"| cell | requests/s | seeds | | {' | '.join(names)} |"
    yield "|---" * (4 + len(names)) + "|"
    for result in report.cells:
        for figure in FIGURES:
            means = " | ".join(_mean(result, name, figure) for name in names)
            yield (
                f"| {result.cell} | {result.rate_per_s:.2f} | {result.num_seeds} | {SHORT_NAMES[figure]} | {means} |"
            )


def _mean(result: CellResult, name: str, figure: Figure) -> str:
    one = result.topologies[name]
    if one.verdict == "unstable":
        return "does not keep up"
    failed = f", {one.num_failed} failed" if one.num_failed else ""
    return _milliseconds(one.mean_s.get(figure)) + (" ?" if one.verdict == "invalid" else "") + failed
