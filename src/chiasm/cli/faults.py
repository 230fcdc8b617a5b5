"""`chiasm faults`: what becomes of a request when something around it fails."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from chiasm.cli.options import ConfigFile, Json, Overrides, resolved
from chiasm.cli.printing import FAILURE, print_json, steps_bar
from chiasm.cli.process import restart_for_arithmetic

if TYPE_CHECKING:
    from chiasm.faults.matrix import Trial
    from chiasm.faults.verdict import Verdict
    from chiasm.settings import Settings


def faults(
    topology: Annotated[
        list[str] | None, typer.Option(help="e-pd, e-p-d or auto; may be repeated. None: all.", show_default=False)
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A fault or a group of --list; may be repeated. None: all.", show_default=False
        ),
    ] = None,
    list_them: Annotated[bool, typer.Option("--list", help="Print the faults and what is expected, try none.")] = False,
    config_file: ConfigFile = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Break fleets on purpose and judge what becomes of a request, its neighbours and the workers.

    Fleets of this machine are started for it, with the packaged tiny model or that of engine.model; running servers
    are not touched. Each fault is met by one request while a text and a picture are answered beside it. A verdict is
    good when the request recovered with the right tokens, or ended with the expected code inside its deadline; the
    neighbours' tokens are unchanged; no worker died that was not killed; and nothing stays held. The exit status is 1
    when one is not.

    The faults of group kill take some minutes, since killed processes have to come back. Try:

      chiasm faults --list

      chiasm faults --topology e-pd --fault embedding-never

      chiasm faults --fault metadata --fault kv --json
    """
    settings = resolved(config_file, overrides).settings
    from chiasm.faults.matrix import chosen

    trials = chosen(fault or (), topology or ())
    if list_them:
        _print_list(trials, json=json)
        return
    restart_for_arithmetic()
    verdicts = asyncio.run(_verdicts(trials, settings))
    if json:
        print_json(verdicts)
    else:
        _print_table(verdicts)
    if not all(verdict.is_good for verdict in verdicts):
        raise typer.Exit(FAILURE)


async def _verdicts(trials: "list[Trial]", settings: "Settings") -> "list[Verdict]":
    """Make the trials; on a terminal, says on standard error what is being tried and how it has gone so far."""
    from chiasm.faults.matrix import AFTERWARDS, run_matrix
    from chiasm.observability.logs import configure_logging

    configure_logging("error")
    verdicts: list[Verdict] = []
    with steps_bar() as bar:
        task = bar.add_task("Starting", total=len(trials))

        def on_trial(name: str, where: str) -> None:
            bar.update(task, description=f"{where}: {name}")

        async for verdict in run_matrix(trials, settings, on_trial):
            verdicts.append(verdict)
            bar.advance(task, verdict.fault != AFTERWARDS)
            for problem in verdict.problems:
                bar.console.print(f"{verdict.topology}: {verdict.fault}: {problem}", style="red", markup=False)
    return verdicts


def _print_table(verdicts: "list[Verdict]") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", "Topology", box=None, pad_edge=False)
    for name in ("Fault", "Expected", "Outcome"):
        table.add_column(name, no_wrap=True, overflow="ignore")
    table.add_column("Attempts")
    table.add_column("ms", justify="right")
    for verdict in verdicts:
        mark = "[green]good[/]" if verdict.is_good else "[red]BAD[/]"
        attempts, spent = "\n".join(verdict.attempts), f"{verdict.elapsed_ms:.0f}" if verdict.elapsed_ms else ""
        table.add_row(mark, verdict.topology, verdict.fault, verdict.expected, verdict.outcome, attempts, spent)
    console = Console()
    console.print(table)
    num_bad = sum(not verdict.is_good for verdict in verdicts)
    console.print(f"{num_bad} of {len(verdicts)} verdicts are bad")


def _print_list(trials: "list[Trial]", *, json: bool) -> None:
    rows = [
        {
            "fault": scenario.name,
            "group": scenario.group,
            "topology": topology,
            "what": scenario.what,
            "expected": scenario.outcome,
        }
        for topology, scenario in trials
    ]
    if json:
        print_json(rows)
        return
    topologies: dict[str, list[str]] = {}
    for row in rows:
        topologies.setdefault(row["fault"], []).append(row["topology"])
    for row in {row["fault"]: row for row in rows}.values():
        where = ", ".join(topologies[row["fault"]])
        typer.echo(f"{row['fault']} ({row['group']}; {where})")
        typer.echo(f"  {row['what']} -> {row['expected']}")
