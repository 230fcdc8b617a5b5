"""Results for people: rich tables."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from chiasm.bench.search import Goodput
from chiasm.bench.statistics.intervals import Interval, bootstrap
from chiasm.bench.summary import CellSummary, Group

if TYPE_CHECKING:
    from chiasm.bench.statistics.distribution import Distribution

_NOTHING = "-"
_STYLES = {"valid": "green", "unstable": "yellow", "invalid": "red"}
_LATENCIES = {
    "ttft": "TTFT, from the schedule",
    "wire_ttft": "TTFT, from the send",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2el": "E2EL, from the schedule",
    "queue_time": "queue time (receipts)",
}


def cell_report(summary: CellSummary) -> RenderableType:
    """One cell: verdict, classes, latencies, stages."""
    parts: list[RenderableType] = [_verdict(summary), _counts(summary)]
    groups = {"all": summary.total} | (summary.classes if len(summary.classes) > 1 else {})
    parts += [_latencies(name, group) for name, group in groups.items() if group.latencies is not None]
    if summary.total.latencies is not None and (stages := summary.total.latencies.stages) is not None:
        rows = stages.stages_ms | {"unaccounted": stages.unaccounted_ms, "outside the server": stages.outside_ms}
        parts.append(_stages(rows, stages.ttft_ms, stages.count))
    return Stack(*parts)


def repeats_report(summaries: Sequence[CellSummary]) -> RenderableType:
    """Means over repeats with their intervals; only runs that may be believed count."""
    valid = [one for one in summaries if one.verdict == "valid"]
    table = _table("", "mean", "95 % interval")
    for name, interval in repeat_intervals(valid).items():
        table.add_row(name, f"{interval.value:.1f}", f"{interval.low:.1f} to {interval.high:.1f}")
    return _titled(f"Over {len(valid)} valid of {len(summaries)} runs", table)


def repeat_intervals(summaries: Sequence[CellSummary]) -> dict[str, Interval]:
    """The interval over runs of each run's mean and 95th percentile, by name."""
    found: dict[str, Interval] = {}
    for field, title in _LATENCIES.items():
        spreads: list[Distribution | None] = [getattr(one.total.latencies, field) for one in summaries]
        known = [spread for spread in spreads if spread is not None]
        if known and len(known) == len(summaries):
            found[f"{title}, mean [ms]"] = bootstrap([spread.mean_ms for spread in known])
            found[f"{title}, p95 [ms]"] = bootstrap([spread.p95_ms for spread in known])
    if summaries:
        found["requests/s"] = bootstrap([one.throughput.requests_per_s for one in summaries])
        found["output tokens/s"] = bootstrap([one.throughput.output_tokens_per_s for one in summaries])
    return found


def goodput_report(found: Goodput, num_devices: int) -> RenderableType:
    """The curve and the rate."""
    names = list(dict.fromkeys(name for trial in found.trials for name in trial.by_class))
    names = names if len(names) > 1 else []
    table = _table("requests/s", "attained", *names, "stable")
    for trial in found.trials:
        shares = (f"{trial.by_class.get(name, 0.0):.1%}" for name in names)
        style = "green" if trial.is_good else ""
        steady = "yes" if trial.is_stable else "no"
        table.add_row(f"{trial.rate_per_s:.3g}", f"{trial.attainment:.1%}", *shares, steady, style=style)
    each = f", {found.goodput_per_s / num_devices:.3g} per device" if num_devices > 1 else ""
    line = f"Goodput {found.goodput_per_s:.3g} requests/s{each} (below {found.first_bad_per_s:.3g})"
    return Stack(_titled("Attainment by rate", table), Text(line, style="bold"))


def peak_report(summary: CellSummary, concurrency: int) -> RenderableType:
    """A closed loop: rates only."""
    rates = summary.throughput
    line = (
        f"Peak throughput with {concurrency} requests open: {rates.requests_per_s:.1f} requests/s, "
        f"{rates.output_tokens_per_s:.0f} output tokens/s, {rates.body_mb_per_s:.1f} MB/s of bodies"
    )
    return Stack(Text(line, style="bold"), _counts(summary))


def _verdict(summary: CellSummary) -> Text:
    rates, client = summary.throughput, summary.client
    text = Text()
    text.append(summary.verdict, style=f"bold {_STYLES[summary.verdict]}")
    if summary.rate_per_s is not None:
        text.append(f"   {summary.rate_per_s:.3g} requests/s asked for")
    text.append(
        f"   {rates.requests_per_s:.2f} requests/s and {rates.output_tokens_per_s:.0f} output tokens/s served\n"
    )
    text.append(
        f"client: {client.num_processes} processes, {client.cpu_share:.0%} of a core, "
        f"send lag p99 {client.send_lag_p99_ms:.2f} ms",
        style="dim",
    )
    for problem in client.problems:
        text.append(f"\nnot to be believed: {problem}", style="red")
    if summary.stability is not None and not summary.stability.is_stable:
        text.append(
            f"\nthe server cannot keep up: latency grew by {summary.stability.growth:.1f} times its first level, "
            "and would go on growing; so there are no latencies to report",
            style="yellow",
        )
    return text


def _counts(summary: CellSummary) -> RenderableType:
    groups = summary.classes | ({"all": summary.total} if len(summary.classes) > 1 else {})
    table = _table("class", "attempted", "finished", "other endings", "prompt tokens", "output tokens", "attained")
    for name, group in groups.items():
        table.add_row(name, str(group.num_attempted), str(group.num_finished), *_count_cells(group))
    if not (num_wrong := summary.total.num_wrong_length):
        return table
    return Stack(table, Text(f"{num_wrong} answers have another length than was asked for", style="yellow"))


def _count_cells(group: Group) -> Iterable[str]:
    others = {outcome: count for outcome, count in group.outcomes.items() if outcome != "finished"}
    yield ", ".join(f"{count} {outcome}" for outcome, count in others.items()) or _NOTHING
    yield _NOTHING if group.mean_prompt_tokens is None else f"{group.mean_prompt_tokens:.0f}"
    yield f"{group.mean_output_tokens:.0f}"
    yield _NOTHING if group.attainment is None else f"{group.attainment:.1%}"


def _latencies(name: str, group: Group) -> RenderableType:
    table = _table("", "mean", "p50", "p90", "p95", "p99", "max")
    for field, title in _LATENCIES.items():
        spread: Distribution | None = getattr(group.latencies, field)
        if spread is not None:
            values = (spread.mean_ms, spread.p50_ms, spread.p90_ms, spread.p95_ms, spread.p99_ms, spread.max_ms)
            table.add_row(title, *(_number(value) for value in values))
    return _titled(f"Latency of {name} [ms]", table)


def _stages(rows: Mapping[str, float], ttft_ms: float, count: int) -> RenderableType:
    table = _table("", "ms", "share")
    for name, value in rows.items():
        table.add_row(name, _number(value), f"{value / ttft_ms:.1%}")
    table.add_row("TTFT, from the send", _number(ttft_ms), "", style="bold")
    return _titled(f"Time to first token by stage, mean of {count} receipts", table)


def _titled(title: str, table: Table) -> Stack:
    return Stack(Text(f"\n{title}", style="bold"), table)


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right")
    return table


def _number(value_ms: float) -> str:
    return (
        f"{value_ms:.0f}" if abs(value_ms) >= 1000 else f"{value_ms:.1f}" if abs(value_ms) >= 10 else f"{value_ms:.2f}"
    )
