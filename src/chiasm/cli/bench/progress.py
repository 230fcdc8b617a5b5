"""What a terminal shows while a cell or a grid runs."""

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from chiasm.bench.cell import Watcher
from chiasm.bench.client.messages import Progress as Sent
from chiasm.bench.grid.cells import Kind
from chiasm.bench.grid.runner import GridWatcher, Step
from chiasm.bench.grid.servers import Server
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


class GridProgress(GridWatcher):
    """A bar for the grid, with the time that is left. Where there is no terminal, a line for each tenth of it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
        )
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("Starting servers", total=None, left="")
        self._said = -1

    def __enter__(self) -> "GridProgress":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def started(self, servers: Sequence[Server]) -> None:
        """See `GridWatcher`."""
        self._say(f"Ready: {', '.join(server.name for server in servers)}")

    def step(self, step: Step) -> None:
        """See `GridWatcher`."""
        left = "" if step.left_s is None else f"{step.left_s / 60:.0f} min left"
        what = f"{step.cell}, seed {step.seed}"
        self._bar.update(self._task, description=what, completed=step.num_done, total=step.num_steps, left=left)
        tenth = 10 * step.num_done // step.num_steps
        if not self._console.is_terminal and tenth != self._said:
            self._said = tenth
            self._say(f"{step.num_done}/{step.num_steps}  {what}  {left}")

    def skipped(self, kind: Kind, reason: str) -> None:
        """See `GridWatcher`."""
        self._say(f"Left out: {kind}. {reason}")

    def ended(self, num_left: int) -> None:
        """See `GridWatcher`."""
        if num_left:
            self._say(f"{num_left} cells and seeds are left for --resume")

    def _say(self, text: str) -> None:
        self._console.print(text, style="dim", markup=False, highlight=False)
