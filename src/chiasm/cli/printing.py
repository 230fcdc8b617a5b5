"""What commands print besides their results."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from json import dumps
from time import monotonic
from typing import TYPE_CHECKING

import typer

from chiasm.errors import ChiasmError, SettingsError

if TYPE_CHECKING:
    from rich.progress import Progress

FAILURE = 1
USAGE = 2
_SAY_EVERY_S = 10.0
_TELLING_SHARE = 0.02
"""Of work that is done before the time of the rest is told."""
_MINUTES_FROM_S = 100.0


def report_error(error: ChiasmError) -> int:
    """Print an error and its hint, and with --json its code for programs; return the exit status."""
    status = say_error(error)
    print_error_json(error.code, error.message, error.hint)
    return status


def say_error(error: ChiasmError) -> int:
    """Print an error and its hint to standard error; return the exit status."""
    typer.secho(f"Error: {error.message}", fg=typer.colors.RED, err=True)
    if error.hint:
        typer.echo(f"  {error.hint}", err=True)
    return USAGE if isinstance(error, SettingsError) else FAILURE


def print_error_json(code: str, message: str, hint: str | None = None) -> None:
    """Print a line for programs, in the form of the HTTP API's errors, where the command line asks for JSON."""
    if "--json" not in sys.argv:
        return
    try:
        typer.echo(dumps(_fields(code, message, hint)))
    except OSError:
        close_output()


def error_fields(error: ChiasmError) -> dict[str, object]:
    """The same fields, to stand in the place of a result among several."""
    return _fields(error.code, error.message, error.hint)


def _fields(code: str, message: str, hint: str | None) -> dict[str, object]:
    return {"error": {"code": code, "message": message, "hint": hint}}


def close_output() -> None:
    """Let go of standard output, which takes nothing more: what is left would fail at the end again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_json(value: object) -> None:
    """Print a result for programs."""
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(value)).decode())


def steps_bar() -> "Progress":
    """A bar of steps on standard error, for long work; nothing where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def long_work(num_all: int) -> Iterator[Callable[[str, int], None]]:
    """Says on standard error what is done, how much of it, and about how long the rest takes, going by that.

    A bar on a terminal, elsewhere a line now and then.
    """
    began_s = said_s = monotonic()
    with steps_bar() as bar:
        task = bar.add_task("", total=num_all)

        def at(what: str, num_done: int) -> None:
            nonlocal said_s
            left = time_left(num_done, num_all, monotonic() - began_s)
            bar.update(task, description=f"{what}{left}", completed=num_done)
            if not bar.console.is_terminal and monotonic() - said_s >= _SAY_EVERY_S:
                said_s = monotonic()
                typer.echo(f"{what}: {num_done:,} of {num_all:,}{left}", err=True)

        yield at


def time_left(num_done: int, num_all: int, elapsed_s: float) -> str:
    """About how long the rest takes if it goes on as it did on average; nothing while too little is done to tell."""
    if not _TELLING_SHARE * num_all <= num_done < num_all:
        return ""
    left_s = elapsed_s * (num_all - num_done) / num_done
    return f", about {left_s:.0f} s left" if left_s < _MINUTES_FROM_S else f", about {left_s / 60:.0f} min left"


@contextmanager
def busy_line(doing: str) -> Iterator[Callable[[str], None]]:
    """Says on standard error what long work is at: one line on a terminal, elsewhere a line now and then."""
    from rich.console import Console

    console, said_s = Console(stderr=True), monotonic()
    with console.status(doing) as status:

        def at(what: str) -> None:
            nonlocal said_s
            status.update(f"{doing}: {what}")
            if not console.is_terminal and monotonic() - said_s >= _SAY_EVERY_S:
                said_s = monotonic()
                typer.echo(f"{doing}: {what}", err=True)

        yield at


class LoadingLine:
    """Shows what a loading model does, on standard error; lines that replace each other on a terminal, else nothing."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console, transient=True
        )
        self._task = self._bar.add_task("Starting", total=1.0)
        self._is_shown = console.is_terminal

    def __enter__(self) -> Callable[[str, float], None]:
        if self._is_shown:
            self._bar.start()
        return self._update

    def __exit__(self, *_: object) -> None:
        if self._is_shown:
            self._bar.stop()

    def _update(self, what: str, share: float) -> None:
        self._bar.update(self._task, description=what, completed=share)
