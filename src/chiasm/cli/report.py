"""`chiasm report`: what a running server is and does, in one file."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from chiasm.cli.files import check_folders, write_file
from chiasm.cli.options import Json
from chiasm.cli.printing import FAILURE, print_json, steps_bar
from chiasm.cli.process import leave_on_sigterm

if TYPE_CHECKING:
    from rich.progress import Progress

    from chiasm.errors import DeadlineExceededError
    from chiasm.reporting.cells import Plan
    from chiasm.reporting.comparison import Comparison
    from chiasm.reporting.content import Report

_FORMS = (".html", ".md", ".json")


def report(  # noqa: PLR0913 - each argument is an option
    url: Annotated[
        str, typer.Argument(metavar="[URL]", help="A running server of Chiasm's.")
    ] = "http://127.0.0.1:8000",
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "--output", "-o", help="File to write: .html, .md or .json; may be repeated.", show_default="report.html"
        ),
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="The .json of an earlier report; the exit status is 1 when this one is worse.")
    ] = None,
    tolerance: Annotated[
        float, typer.Option(min=0, max=10, help="Change of a median that is still the same, as a share.")
    ] = 0.1,
    seconds: Annotated[float, typer.Option(min=0.1, help="Time for each cell, about.")] = 8.0,
    concurrency: Annotated[str, typer.Option(help="Requests open at once, cell by cell.")] = "1,2,4,8",
    images: Annotated[str, typer.Option(help="Pictures of a request, cell by cell.")] = "0,1,2,4",
    sizes: Annotated[str, typer.Option(help="Sides of the pictures, cell by cell.")] = "224,448,896",
    minutes: Annotated[
        float, typer.Option(min=0.01, max=1440, help="Give up after so many; nothing is written then.")
    ] = 30.0,
    text_tokens: Annotated[int, typer.Option(min=1, help="Words of text, about a token each.")] = 64,
    output_tokens: Annotated[int, typer.Option(min=1, help="Length of answers.")] = 32,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="CHIASM_API_KEY", help="Key with the scopes infer and metrics.", show_default=False),
    ] = None,
    json: Json = False,
) -> None:
    """Measure a running server and write down what it is, does, allows and keeps.

    The report has the model and its revisions, where the time goes by pictures and their size, throughput and latency
    with more and more requests at once, caches, memory, limits and rules, a usual and a slow request, and what the
    server refuses. The HTML file needs nothing else. The server should have no other work for the minutes it takes.
    Files are written at the end: Ctrl+C, SIGTERM, or a server that ends leaves none. The server is never ended.

    Try:

      chiasm report http://127.0.0.1:8000 --output report.html

      chiasm report --output report.md --output report.json --seconds 3

      chiasm report --output tonight.html --output tonight.json --baseline yesterday.json
    """
    from chiasm.errors import InvalidSettingError
    from chiasm.reporting.cells import Plan
    from chiasm.reporting.comparison import check_load, compare, read_report

    outputs = output or ([] if json else [Path("report.html")])
    for path in outputs:
        if path.suffix not in _FORMS:
            raise InvalidSettingError(f"'{path.name}' is none of {', '.join(_FORMS)}", hint="--output report.html")
    check_folders(*outputs)
    plan = Plan(
        seconds_per_cell=seconds,
        concurrency=_counts(concurrency, "--concurrency", 1),
        images=_counts(images, "--images", 0),
        sizes=_counts(sizes, "--sizes", 8),
        text_tokens=text_tokens,
        output_tokens=output_tokens,
    )
    earlier = None if baseline is None else read_report(baseline)
    if earlier is not None:
        check_load(earlier.load, {name: told for name, told in plan.load.items() if name != "kind"})
    leave_on_sigterm()
    made = asyncio.run(_made(url, api_key, plan, minutes))
    try:
        comparison = None if earlier is None else compare(earlier, made, tolerance)
    except InvalidSettingError:  # what took minutes is kept
        for path in outputs:
            _write(path, made, None)
        raise
    for path in outputs:
        _write(path, made, comparison)
    if json:
        print_json({"report": made, "comparison": comparison})
    else:
        _tell(outputs, comparison)
    if comparison is not None and comparison.is_worse:
        raise typer.Exit(FAILURE)


def _counts(text: str, option: str, least: int) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 6 and int(part) >= least for part in parts):
        raise typer.BadParameter(f"{option} takes numbers from {least} on with commas, as in 1,2,4")
    return tuple(sorted({int(part) for part in parts}))


async def _made(url: str, api_key: str | None, plan: "Plan", minutes: float) -> "Report":
    """Make it, and say on standard error how far it is. Raises `DeadlineExceededError`."""
    from chiasm.bench.cell import Watcher
    from chiasm.bench.server import ServerView
    from chiasm.bench.target import parse_target
    from chiasm.reporting.gathering import make_report

    with (
        steps_bar() as bar,
        TemporaryDirectory(prefix="chiasm-report-") as folder,
    ):
        steps, limit = _Steps(bar), asyncio.timeout(60 * minutes)
        try:
            async with limit, ServerView(parse_target(url, api_key)) as server:
                return await make_report(server, plan, Path(folder), steps.next, Watcher())
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise steps.too_long(minutes) from error


class _Steps:
    """How far a report is: a bar, or lines where there is no terminal."""

    def __init__(self, bar: "Progress") -> None:
        self._bar = bar
        self._task = bar.add_task("Starting")
        self._last = "the first answer"

    def next(self, what: str, num_done: int, num_all: int) -> None:
        """What comes next."""
        self._last = f"{num_done + 1} of {num_all}, {what}"
        self._bar.update(self._task, description=what, completed=num_done, total=num_all)
        if self._bar.disable:
            typer.echo(f"Step {self._last}", err=True)

    def too_long(self, minutes: float) -> "DeadlineExceededError":
        """What is said of a report that took too long."""
        from chiasm.errors import DeadlineExceededError

        return DeadlineExceededError(
            f"The report was not done after {minutes:g} minutes, at step {self._last}; nothing is written",
            hint="Allow more --minutes, or measure less: --seconds, --concurrency, --images, --sizes",
        )


def _write(path: Path, made: "Report", comparison: "Comparison | None") -> None:
    import msgspec

    from chiasm.reporting.markdown import markdown_page
    from chiasm.reporting.page import html_page
    from chiasm.reporting.sections import sections_of

    title = f"Serving report: {made.model.id}"
    if path.suffix == ".json":
        text = msgspec.json.format(msgspec.json.encode(made)).decode()
    else:
        page = html_page if path.suffix == ".html" else markdown_page
        text = page(title, sections_of(made, comparison))
    write_file(path, text)


def _tell(outputs: list[Path], comparison: "Comparison | None") -> None:
    if comparison is not None:
        typer.echo(f"Against the baseline: {comparison.verdict}")
        for change in comparison.changes:
            if change.verdict != "same":
                typer.echo(f"  {change.cell} {change.what}: {change.verdict}, {change.change:+.1%}")
        for finding in comparison.findings:
            typer.echo(f"  {finding}")
    for path in outputs:
        typer.echo(f"Written: {path}")
