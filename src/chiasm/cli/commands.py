"""What all commands have in common: options that are numbers are finite ones."""

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand

from chiasm.settings.finite import non_finite


class Command(TyperCommand):
    """A command that refuses inf and nan, which `min` and `max` of an option let through on one side."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, and refuse the first option that is no finite number."""
        rest = super().parse_args(ctx, args)
        for one in self.params:
            if (problem := non_finite(ctx.params.get(one.name), "/".join(one.opts))) is not None:
                raise typer.BadParameter(problem, ctx=ctx)
        return rest


class Commands(typer.Typer):
    """A group of such commands."""

    def command(self, *args: Any, **options: Any) -> Callable[[Any], Any]:
        """Add a command to the group."""
        return super().command(*args, **{"cls": Command} | options)
