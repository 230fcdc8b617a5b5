"""`chiasm bench`: one load, or a grid of them. A URL in place of a command is a load."""

from typing import Any

from typer.core import TyperGroup

from chiasm.cli.bench.command import load
from chiasm.cli.bench.grid import grid
from chiasm.cli.commands import Commands

_HELP = """Put load on servers and measure what comes of it.

`chiasm bench URL ...` is short for `chiasm bench load URL ...`.

Try:

  chiasm bench http://127.0.0.1:8000 --rate 4 --images 1

  chiasm bench load --help

  chiasm bench grid grid.toml --output results
"""


class _LoadByDefault(TyperGroup):
    """What is no command, and asks for no help, belongs to `load`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["load", *args]
        return super().parse_args(ctx, args)


bench = Commands(help=_HELP, no_args_is_help=True, cls=_LoadByDefault)
bench.command()(load)
bench.command()(grid)
