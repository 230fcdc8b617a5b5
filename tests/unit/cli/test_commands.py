"""What every command refuses: options that are no finite numbers, and those that would do nothing."""

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


CLI = {"COLUMNS": "300", "TERM": "dumb"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("simulate --calibration c.json --trace t.jsonl --rate 3", "--rate is without effect beside --trace"),
        (
            "simulate --calibration c.json --trace t.jsonl --traffic t.json",
            "--traffic is without effect beside --trace",
        ),
        ("simulate --calibration c.json --traffic t.json --osl 3", "--osl is without effect beside --traffic"),
        ("simulate --calibration c.json --speed 2", "--speed goes only with --trace"),
        ("simulate --calibration c.json --mean-down-s 2", "--mean-down-s goes only with --mean-up-s"),
        ("simulate --calibration c.json --queue-target-ms 2", "--queue-target-ms goes only with --max-encoders"),
        ("advise --calibration c.json --trace t.jsonl --requests 30", "--requests is without effect beside --trace"),
        ("advise --calibration c.json --aim goodput", "--aim goodput needs --slo-ttft-ms"),
        ("bench http://127.0.0.1:9 --speed 2", "--speed goes only with --trace"),
        ("bench http://127.0.0.1:9 --mix m.toml --images 2", "--images is without effect beside --mix"),
        ("bench http://127.0.0.1:9 --peak 2 --repeats 2", "--repeats is without effect beside --peak"),
        ("bench http://127.0.0.1:9 --devices 2", "--devices goes only with --goodput"),
    ],
)
def test_options_that_would_do_nothing_are_refused(words, said):
    made = CliRunner().invoke(app, words.split(), env=CLI)
    assert made.exit_code == 2
    assert said in " ".join(made.output.replace("│", " ").split())


def test_two_different_models_are_not_one():
    made = CliRunner().invoke(app, ["serve", "./one", "--model", "./two"], env=CLI)
    assert made.exit_code == 2
    assert "Two models are named" in made.output


def test_keys_of_servers_come_from_the_environment_everywhere():
    keys = {words: one.envvar for words, command in LEAVES for one in command.params if one.name == "api_key"}
    assert len(keys) > 5
    assert {words for words, name in keys.items() if name not in ("CHIASM_API_KEY", "CHIASM_ADMIN_KEY")} == set()


def test_rules_name_options_that_a_command_has():
    for words, command in LEAVES:
        options = {name for one in command.params for name in one.opts}
        for rule in getattr(command.callback, "rules", ()):
            assert {*rule.options, rule.other} <= options, words
