"""`chiasm bench grid`: a grid of loads on several topologies."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chiasm.cli.bench import options as o
from chiasm.cli.options import Json
from chiasm.cli.process import leave_on_sigterm

if TYPE_CHECKING:
    from chiasm.bench.grid.journal import Journal
    from chiasm.bench.grid.spec import GridSpec

GridFile = Annotated[
    Path, typer.Argument(metavar="GRID.toml", help="What is measured on what; docs/guides/benchmarking.md has one.")
]
Output = Annotated[Path, typer.Option(help="Folder for what was measured and the report.")]
Minutes = Annotated[
    float | None, typer.Option(min=0, help="Begin nothing after so many. None: all of it.", show_default=False)
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with what the folder has.")]
ReportOnly = Annotated[bool, typer.Option("--report-only", help="Measure nothing; write the report of what is there.")]


def grid(
    file: GridFile,
    output: Output = Path("grid-results"),
    minutes: Minutes = None,
    resume: Resume = False,
    report_only: ReportOnly = False,
    api_key: o.ApiKey = None,
    json: Json = False,
) -> None:
    """Compare topologies over images x visual tokens x output length x load, and draw where each is better.

    Servers are started from the grid file, or are there already. For each cell and seed all of them get the same
    requests at the same times, in turns. Cells come in an order that covers all levels evenly wherever it ends, and are
    kept as they finish: `--resume` goes on. Files: runs.jsonl, report.html, report.md, report.json.

    Try:

      chiasm bench grid benchmarks/grids/two_workers.toml --output results --minutes 30

      chiasm bench grid benchmarks/grids/two_workers.toml --output results --resume
    """
    from chiasm.bench.grid.journal import JOURNAL, Journal
    from chiasm.bench.grid.report.data import make_report
    from chiasm.bench.grid.report.files import PAGE, dated_as_measured, write_report
    from chiasm.bench.grid.spec import read_grid
    from chiasm.bench.machine import describe_machine
    from chiasm.cli.printing import print_json
    from chiasm.errors import InvalidSettingError

    spec, machine = read_grid(file), describe_machine()
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidSettingError(f"'{output}' cannot be used: {error.strerror}") from error
    journal = Journal(output / JOURNAL, spec, resume=resume or report_only)
    num_known = len(journal.runs)
    try:
        if not report_only:
            _measure(spec, journal, minutes, api_key)
    finally:  # also of a grid that was cut short
        report = make_report(spec, journal, machine, _command(file, output, minutes))
        if len(journal.runs) == num_known:
            report = dated_as_measured(report, output)
        if report.cells:
            write_report(output, report)
            typer.echo(f"{len(report.cells)} of {report.num_cells} cells are in {output / PAGE}", err=True)
    if json:
        print_json(report)
        return
    for score in report.scores:
        typer.echo(
            f"{score.topology} against {spec.baseline}, {score.figure}: better in {score.num_better} cells, worse in "
            f"{score.num_worse}, undecided in {score.num_undecided}, overloaded in {score.num_unstable}"
        )
    for promise, counts in report.tally.items():
        typer.echo(f"{promise}: kept {counts['kept']}, open {counts['open']}, broken {counts['broken']}")


def _measure(spec: "GridSpec", journal: "Journal", minutes: float | None, api_key: str | None) -> None:
    import asyncio
    from contextlib import nullcontext

    from rich.console import Console

    from chiasm.bench.awake import cores_awake
    from chiasm.bench.grid.runner import left_to_measure, measure_grid
    from chiasm.bench.grid.servers import servers
    from chiasm.cli.bench.progress import GridProgress

    if not left_to_measure(spec, journal):
        typer.echo("Everything has been measured", err=True)
        return

    async def run() -> None:
        with GridProgress(Console(stderr=True)) as progress:
            async with servers(spec, api_key) as running:
                await measure_grid(spec, journal, running, progress, minutes=minutes)

    leave_on_sigterm()
    with cores_awake() if spec.awake else nullcontext():
        asyncio.run(run())


def _command(file: Path, output: Path, minutes: float | None) -> str:
    """The command again, for a page that others read: without a key, and without folders that only this machine has."""
    paths = [path.name if path.is_absolute() else str(path) for path in (file, output)]
    words = ["chiasm", "bench", "grid", paths[0], "--output", paths[1]]
    return shlex.join([*words, *(() if minutes is None else ("--minutes", f"{minutes:g}"))])
