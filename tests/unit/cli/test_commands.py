"""Options that are numbers: infinite ones, and those that are none, are refused by every command."""

import typing

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from chiasm.cli.app import app
from chiasm.cli.commands import Command, Commands


def leaves(command, words=()):
    if not hasattr(command, "commands"):
        return [(words, command)]
    return [leaf for name, one in command.commands.items() for leaf in leaves(one, (*words, name))]


LEAVES = leaves(get_command(app))


def test_every_command_is_one_that_checks_its_numbers():
    assert len(LEAVES) > 30
    assert [words for words, command in LEAVES if not isinstance(command, Command)] == []


@pytest.mark.parametrize(
    "words",
    [
        ("bench", "load", "http://127.0.0.1:9", "--rate"),
        ("bench", "http://127.0.0.1:9", "--speed"),
        ("bench", "grid", "nothing.toml", "--minutes"),
        ("simulate", "--calibration", "nothing.json", "--rate"),
        ("advise", "--calibration", "nothing.json", "--slo-ttft-ms"),
        ("report", "--seconds"),
        ("parity", "nothing", "--threshold"),
    ],
)
@pytest.mark.parametrize("number", ["inf", "nan", "1e999"])
def test_it_is_refused_as_wrong_usage(words, number):
    made = CliRunner().invoke(app, [*words, number], env={"COLUMNS": "200", "TERM": "dumb"})
    assert made.exit_code == 2
    assert f"{words[-1]}" in made.output


def test_so_is_one_among_several():
    group = Commands()

    def several(shares: typing.Annotated[list[float], typer.Option()]) -> None:
        raise AssertionError(shares)

    group.command()(several)
    made = CliRunner().invoke(group, ["--shares", "1", "--shares=-inf"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert made.exit_code == 2
    assert "--shares.1 is -inf" in made.output
