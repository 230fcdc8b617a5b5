"""`chiasm simulate`: fleets in virtual time, side by side."""

import logging
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chiasm.cli.commands import only_with
from chiasm.cli.files import check_folders, write_file
from chiasm.cli.options import Json
from chiasm.cli.printing import long_work, print_json
from chiasm.cli.workload import CalibrationFile, Described, calibration_of, describes_traffic

if TYPE_CHECKING:
    from chiasm.simulator.run import Changes
    from chiasm.simulator.summary import ClassSummary, Objective, Summary


class PolicyName(StrEnum):
    """The choices of an option."""

    ROUND_ROBIN = "round_robin"
    LEAST_WORK = "least_work"
    CONTENT = "content"
    ADAPTIVE = "adaptive"


@only_with("--mean-up-s", "--mean-down-s")
@only_with("--max-encoders", "--queue-target-ms")
@describes_traffic(requests=2000)
def simulate(  # noqa: PLR0913 - one parameter is one option
    calibration: CalibrationFile,
    described: Described,
    fleet: Annotated[
        list[str] | None,
        typer.Option(
            help="agg:DEVICES, auto:DEVICES, colocated:DEVICES,ENCODERS_EACH, e-pd:ENCODERS,WORKERS or "
            "e-p-d:ENCODERS,PREFILLS,DECODES; may be repeated. None: agg:2, auto:2 and e-pd:1,1.",
            show_default=False,
        ),
    ] = None,
    policy: Annotated[
        PolicyName, typer.Option(help="How a worker is chosen, as in routing.policy.")
    ] = PolicyName.ADAPTIVE,
    mean_up: Annotated[
        float, typer.Option("--mean-up-s", min=0, help="Each worker dies after so long, on average; 0: none dies.")
    ] = 0.0,
    mean_down: Annotated[
        float, typer.Option("--mean-down-s", min=0, help="And is back after so long, on average, with empty caches.")
    ] = 10.0,
    max_encoders: Annotated[
        int, typer.Option(min=0, max=100_000, help="Scale encoders apart up to so many; 0: as many as there are.")
    ] = 0,
    queue_target_ms: Annotated[
        float, typer.Option(min=1, help="What a picture may wait for encoders before more of them are started.")
    ] = 500.0,
    timeline: Annotated[
        Path | None,
        typer.Option(help="Write the first requests of the last fleet as a trace for chrome://tracing or Perfetto."),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with charts.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the numbers as Markdown.")] = None,
    json: Json = False,
) -> None:
    """Say what fleets would do with the same requests, without having any of them.

    Routing, policies and the scheduler are those that serve real requests; only what stages cost comes from a file of
    measurements. So are recovery from workers that die (--mean-up-s) and the signal that encoders are scaled by
    (--max-encoders).

    Try:

      chiasm simulate --calibration costs.json --images 4 --rate 3

      chiasm simulate --calibration costs.json --fleet agg:4 --fleet e-pd:1,3 --text-share 0.5 --slo-ttft-ms 500

      chiasm simulate --calibration costs.json --fleet agg:4 --trace trace.jsonl --speed 2
    """
    from chiasm.simulator.cluster import on_one_host
    from chiasm.simulator.compare import compare
    from chiasm.simulator.fleets import fleet_named
    from chiasm.simulator.timeline import Timeline

    logging.getLogger("chiasm.routing").setLevel(logging.ERROR)  # that simulated workers die is no warning
    check_folders(timeline, html, markdown)
    costs = calibration_of(calibration)
    seen = described.seen()
    traffic = described.traffic(seen)
    objective = described.objective
    named = [fleet_named(one) for one in fleet or ("agg:2", "auto:2", "e-pd:1,1")]
    clusters = [on_one_host(one) for one in named] if described.one_host else named
    picture = Timeline() if timeline is not None else None
    num_requests = len(seen.requests) if seen is not None else traffic.num_requests
    with long_work(len(clusters) * num_requests) as at:
        summaries = list(
            compare(
                clusters,
                traffic,
                costs,
                policy=policy.value,
                requests=seen.requests if seen is not None else None,
                changes=_changes(mean_up, mean_down, max_encoders, queue_target_ms, described.seed),
                objective=objective,
                on_span=lambda cluster: picture.see if picture is not None and cluster is clusters[-1] else None,
                on_ended=lambda cluster, count: at(cluster.name, clusters.index(cluster) * num_requests + count),
            )
        )
    if picture is not None and timeline is not None:
        picture.save(timeline)
    _write(summaries, html, markdown, objective, costs.source)
    if json:
        print_json(summaries)
    else:
        _print(summaries)


def _write(
    summaries: "list[Summary]", html: Path | None, markdown: Path | None, objective: "Objective", source: str
) -> None:
    from chiasm.simulator.report.page import html_of, markdown_of

    notes = [f"Stage costs: {source}."] if source else []
    if html is not None:
        write_file(html, html_of(summaries, objective, notes))
    if markdown is not None:
        write_file(markdown, markdown_of(summaries, notes))


def _changes(up_s: float, down_s: float, max_encoders: int, queue_ms: float, seed: int) -> "Changes":
    from chiasm.simulator.failures import Failures
    from chiasm.simulator.run import Changes
    from chiasm.simulator.scaling import Scaling

    return Changes(
        failures=Failures(mean_up_s=up_s, mean_down_s=down_s, seed=seed) if up_s else None,
        scaling=Scaling(max_encoders=max_encoders, queue_s=queue_ms / 1e3) if max_encoders else None,
    )


def _print(summaries: "list[Summary]") -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("Fleet", no_wrap=True)
    table.add_column("Class")
    for name in ("TTFT p50", "p95", "TPOT p50", "E2EL p50", "p95", "good"):
        table.add_column(name, justify="right")
    for name in ("Busiest", "Ways"):
        table.add_column(name)
    for summary in summaries:
        binding = f"{summary.binding} {summary.utilisation.get(summary.binding, 0.0):.0%}"
        state = binding if summary.is_stable else f"[red]{binding}: UNSTABLE[/]"
        ways = ", ".join(f"{path} {count}" for path, count in summary.paths.items())
        for row, one in enumerate(summary.classes):
            table.add_row(
                *("" if row else summary.cluster, escape(one.name)),
                *_figures(one),
                *("", "") if row else (state, ways),
            )
    console = Console()
    console.print(table)
    for summary in summaries:
        if summary.num_deaths or summary.most_encoders > summary.mean_encoders:
            console.print(_what_changed(summary))
    console.print("Times in milliseconds. An unstable fleet's queue grows for as long as requests come.")


def _what_changed(summary: "Summary") -> str:
    parts = []
    if summary.num_deaths:
        ended = ", ".join(f"{count} {code}" for code, count in summary.failures.items()) or "none"
        parts.append(f"{summary.num_deaths} deaths of workers; requests that ended with an error: {ended}")
    if summary.most_encoders > summary.mean_encoders:
        parts.append(f"{summary.mean_encoders:.1f} encoders on average, {summary.most_encoders} at most")
    return f"{summary.cluster}: {'; '.join(parts)}."


def _figures(one: "ClassSummary") -> tuple[str, ...]:
    tpot = "" if one.tpot_s is None else f"{1e3 * one.tpot_s.p50:.1f}"
    first, whole = one.ttft_s, one.e2el_s
    times = (
        f"{1e3 * first.p50:.0f}",
        f"{1e3 * first.p95:.0f}",
        tpot,
        f"{1e3 * whole.p50:.0f}",
        f"{1e3 * whole.p95:.0f}",
    )
    return (*times, f"{one.attained:.0%}")
