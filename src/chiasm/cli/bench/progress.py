"""What a terminal shows while a cell runs."""

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from chiasm.bench.cell import Watcher
from chiasm.bench.client.messages import Progress as Sent
from chiasm.bench.summary import CellSummary


class CellProgress(Watcher):
    """A bar for the cell under way, and a line for each that has ended. Where there is no terminal, only the lines."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("Starting", total=1)
        self._name = ""

    def __enter__(self) -> "CellProgress":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def cell(self, name: str, num_requests: int) -> None:
        """See `Watcher`."""
        self._name = name
        self._bar.reset(self._task, description=f"{name}: making requests", total=num_requests)

    def planned(self, count: int) -> None:
        """See `Watcher`."""
        self._bar.update(self._task, completed=count)

    def sent(self, progress: Sent) -> None:
        """See `Watcher`."""
        num_open = progress.num_sent - progress.num_ended
        failed = f", {progress.num_failed} failed" if progress.num_failed else ""
        self._bar.update(self._task, description=f"{self._name}: {num_open} open{failed}", completed=progress.num_ended)

    def ended(self, name: str, summary: CellSummary) -> None:
        """See `Watcher`."""
        total = summary.total
        attained = "" if total.attainment is None else f", {total.attainment:.1%} within limits"
        self._console.print(
            f"{name}: {summary.verdict}, {total.num_finished} of {total.num_attempted} finished{attained}",
            style="dim",
            markup=False,
            highlight=False,
        )
