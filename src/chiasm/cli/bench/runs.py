"""Running what `chiasm bench` was asked for, and printing it."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import typer
from rich.console import Console, RenderableType

from chiasm.bench import tables
from chiasm.bench.cell import Bench, LoadSpec
from chiasm.bench.probe import probe
from chiasm.bench.summary import CellSummary
from chiasm.bench.target import Target, parse_target
from chiasm.bench.workload.bodies import Dialect
from chiasm.bench.workload.trace import read_trace
from chiasm.cli.bench.progress import CellProgress
from chiasm.cli.printing import FAILURE, print_json, say_error
from chiasm.cli.process import leave_on_sigterm
from chiasm.errors import EngineError, InvalidSettingError

T = TypeVar("T")


@contextmanager
def results_folder(output: Path | None) -> Iterator[Path]:
    """The folder that was asked for, or one that goes at the end. Raises `InvalidSettingError`."""
    if output is None:
        with TemporaryDirectory(prefix="chiasm-bench-") as folder:
            yield Path(folder)
        return
    try:
        output.mkdir(parents=True, exist_ok=True)
        is_empty = not any(output.iterdir())
    except OSError as error:
        raise InvalidSettingError(f"'{output}' cannot be used: {error.strerror}") from error
    if not is_empty:
        raise InvalidSettingError(f"'{output}' has something in it", hint="--output names a new or an empty folder")
    yield output
    typer.echo(f"Schedules, records and summaries are in {output}", err=True)


class Runs:
    """One command's cells on one server."""

    def __init__(
        self, folder: Path, spec: LoadSpec, *, url: str, api_key: str | None, model: str | None, is_json: bool
    ) -> None:
        self._folder = folder
        self._spec = spec
        self._target = parse_target(url, api_key)
        self._model = model
        self._is_json = is_json
        self._console = Console()
        self._notes = Console(stderr=True)

    def repeats(self, rate_per_s: float, count: int) -> None:
        """An open loop, once or several times."""
        summaries = self._run(lambda bench: bench.repeats(rate_per_s, count))
        valid = [one for one in summaries if one.verdict == "valid"]
        intervals = tables.repeat_intervals(valid) if count > 1 else {}
        reports = [tables.cell_report(one) for one in summaries]
        if intervals:
            reports.append(tables.repeats_report(summaries))
        self._print({"runs": summaries, "intervals": intervals}, *reports)
        if count > 1 and not valid:
            raise typer.Exit(say_error(_no_intervals(summaries)))
        self._judge(summaries)

    def replay(self, trace: Path, speed: float) -> None:
        """A trace."""
        table = read_trace(trace, self._spec.classes)
        summary = self._run(lambda bench: bench.replay("trace", table, speed))
        self._print({"runs": [summary]}, tables.cell_report(summary))
        self._judge([summary])

    def peak(self, concurrency: int) -> None:
        """A closed loop."""
        summary = self._run(lambda bench: bench.peak("peak", concurrency))
        self._print({"concurrency": concurrency, "runs": [summary]}, tables.peak_report(summary, concurrency))
        self._judge([summary])

    def goodput(self, start_per_s: float, num_devices: int) -> None:
        """The search for the highest rate within limits."""
        found = self._run(lambda bench: bench.goodput(start_per_s))
        per_device = {"num_devices": num_devices, "goodput_per_device_per_s": found.goodput_per_s / num_devices}
        self._print({"goodput": found, **per_device}, tables.goodput_report(found, num_devices))

    def _run(self, measure: Callable[[Bench], Awaitable[T]]) -> T:
        async def run() -> T:
            dialect = await probe(self._target, {one.kind for one in self._spec.classes}, self._model)
            self._note(self._target, dialect)
            with CellProgress(self._notes) as progress:
                return await measure(Bench(self._folder, self._target, dialect, self._spec, progress))

        leave_on_sigterm()
        return asyncio.run(run())

    def _note(self, target: Target, dialect: Dialect) -> None:
        generates = any(one.kind in ("chat", "completions") for one in self._spec.classes)
        exact = ", without exact answer lengths" if generates and not dialect.has_exact_length else ""
        self._notes.print(f"{target.url}: model {dialect.model}{exact}", style="dim", markup=False, highlight=False)

    def _print(self, result: object, *reports: RenderableType) -> None:
        if self._is_json:
            print_json(result)
            return
        for report in reports:
            self._console.print(report)
            self._console.print()

    @staticmethod
    def _judge(summaries: list[CellSummary]) -> None:
        if any(one.verdict == "invalid" for one in summaries) or not any(one.total.num_finished for one in summaries):
            raise typer.Exit(FAILURE)


def _no_intervals(summaries: list[CellSummary]) -> EngineError:
    verdicts = Counter(one.verdict for one in summaries)
    told = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
    return EngineError(
        f"There are no intervals, since none of {len(summaries)} runs is valid: {told}",
        hint="Unstable ones want a lower --rate; what made others invalid is said above",
    )
