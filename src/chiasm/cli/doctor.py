"""`chiasm doctor`: what works on this machine, and how to fix what does not."""

from typing import TYPE_CHECKING, Annotated

import typer

from chiasm.cli.options import ConfigFile, Json, Overrides, resolved
from chiasm.cli.printing import FAILURE, print_json

if TYPE_CHECKING:
    from chiasm.cli.checks import Check

_STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor(
    model: Annotated[
        str | None, typer.Option(help="Model directory to try; none: the packaged tiny model.", show_default=False)
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="embedded, or vllm for servers of vLLM.", show_default="embedded")
    ] = None,
    topology: Annotated[
        str | None, typer.Option(help="With vllm: the topology to start and try.", show_default="local")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port that should be free.", show_default="8000")] = None,
    config_file: ConfigFile = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Check versions, the machine, the port, and a real answer about a picture drawn for the purpose.

    With vLLM, servers are started (or those that run already are used), and the picture must go from an encoder to
    prefill where the topology has them apart:

      chiasm doctor --engine vllm --topology e-pd --set vllm.python=/opt/vllm/bin/python

      chiasm doctor --engine vllm --topology e-pd --model ./my-model --set vllm.workers_file=workers.toml

    The exit status is 1 when something does not work. Every failure says what to do.
    """
    from chiasm.cli.checks import run_checks

    settings = resolved(
        config_file, overrides, engine__model=model, engine__kind=engine, routing__topology=topology, gateway__port=port
    ).settings
    checks = []
    for check in run_checks(settings):
        checks.append(check)
        if not json:
            _print(check)
    if json:
        print_json(checks)
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(FAILURE)


def _print(check: "Check") -> None:
    typer.echo(typer.style(f"{check.status:>4}", fg=_STYLES[check.status]) + f"  {check.name}: {check.detail}")
    if check.fix:
        typer.echo(f"      -> {check.fix}")
