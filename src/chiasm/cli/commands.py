"""What all commands have in common: options that are numbers are finite ones, and none is given in vain."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, cast

import typer
from typer.core import TyperCommand, TyperGroup

from chiasm.cli.printing import print_error_json
from chiasm.errors import InvalidSettingError
from chiasm.settings.finite import non_finite

_USAGE_ERRORS = cast("tuple[type[Exception], ...]", typer.BadParameter.__bases__)  # click's class, or typer's copy


class _Rule(NamedTuple):
    """Options that say something only beside another one (`with_it`), or only without it."""

    options: frozenset[str]
    other: str
    with_it: bool


def only_with(other: str, *options: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command refuse options that do nothing unless `other` is given, too."""
    return _ruled(_Rule(frozenset(options), other, with_it=True))


def only_without(other: str, *options: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command refuse options in whose place `other` is given."""
    return _ruled(_Rule(frozenset(options), other, with_it=False))


def _ruled(rule: _Rule) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def given(command: Callable[..., None]) -> Callable[..., None]:
        command.__dict__["rules"] = (*command.__dict__.get("rules", ()), rule)
        return command

    return given


class Command(TyperCommand):
    """A command that refuses inf and nan, which `min` and `max` of an option let through on one side, and options that
    would do nothing beside the others.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, and refuse the first option that is no finite number, or given in vain."""
        rest = super().parse_args(ctx, args)
        for one in self.params:
            if (problem := non_finite(ctx.params.get(one.name), "/".join(one.opts))) is not None:
                raise typer.BadParameter(problem, ctx=ctx)
        for problem in _in_vain(getattr(self.callback, "rules", ()), self._given(ctx)):
            raise typer.BadParameter(problem, ctx=ctx)
        return rest

    def _given(self, ctx: Any) -> Iterator[str]:
        """The options that stand on the command line."""
        for one in self.params:
            source = ctx.get_parameter_source(one.name)
            if source is not None and source.name == "COMMANDLINE":
                yield from one.opts


def _in_vain(rules: Iterable[_Rule], given: Iterable[str]) -> Iterator[str]:
    seen = list(given)
    for rule in rules:
        for option in seen:
            if option in rule.options and (rule.other in seen) != rule.with_it:
                why = f"goes only with {rule.other}" if rule.with_it else f"is without effect beside {rule.other}"
                yield f"{option} {why}"


class Root(TyperGroup):
    """The group of all commands. With --json, wrong usage is told to programs, too."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that is named. Raises what it raises."""
        try:
            return super().invoke(ctx)
        except _USAGE_ERRORS as error:
            print_error_json(InvalidSettingError.code, error.format_message(), "See --help")  # type: ignore[attr-defined]
            raise


class Commands(typer.Typer):
    """A group of such commands."""

    def command(self, *args: Any, **options: Any) -> Callable[[Any], Any]:
        """Add a command to the group."""
        return super().command(*args, **{"cls": Command} | options)
