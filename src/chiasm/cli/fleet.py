"""`chiasm fleet`: the worker processes of a running server."""

import time
from typing import Annotated, Any
from urllib.parse import quote

import typer

from chiasm.cli.commands import Commands
from chiasm.cli.options import AdminKey, Json, Server
from chiasm.cli.printing import print_json

fleet = Commands(
    help="""List the worker processes of a running server and replace them, one after the other.

A worker that is replaced gets no more work, finishes what it has and ends; its successor joins when it has answered a
tiny request. Requests go on meanwhile, on the other workers. Needs an operator's key (scope admin).

  chiasm fleet list

  chiasm fleet restart --all

  chiasm fleet restart --gateway
""",
    no_args_is_help=True,
)

_PATH = "/admin/workers"
_GATEWAY_PATH = "/admin/gateway"
_LOOK_INTERVAL_S = 0.5
_TIMEOUT_S = 1800.0  # a vLLM server may take a quarter of an hour to start


@fleet.command("list")
def list_processes(server: Server = "http://127.0.0.1:8000", api_key: AdminKey = None, json: Json = False) -> None:
    """Print the processes that the server runs; workers that joined from elsewhere are in /debug/state."""
    found = _processes(server, api_key)
    if json:
        print_json(found)
        return
    for one in found:
        typer.echo(f"{one['name']:<16} {one['state']:<9} process {one['pid']}")
    if not found:
        typer.echo("The server runs no worker processes", err=True)


@fleet.command()
def restart(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Those of `chiasm fleet list`.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="All of them, one after the other.")] = False,
    gateway: Annotated[
        bool, typer.Option("--gateway", help="The server itself: a new process takes over its socket.")
    ] = False,
    alone: Annotated[
        bool, typer.Option("--alone", help="Also a worker whose part nobody else plays; requests wait for it.")
    ] = False,
    server: Server = "http://127.0.0.1:8000",
    api_key: AdminKey = None,
    json: Json = False,
) -> None:
    """Replace worker processes by new ones without failing a request. Stops at the first that does not come back.

    Try:

      chiasm fleet restart --all

      chiasm fleet restart prefill-0 --alone

      chiasm fleet restart --gateway
    """
    if bool(names) + all_ + gateway != 1:
        raise typer.BadParameter("Name workers, or say --all or --gateway")
    if gateway:
        _restart_gateway(server, api_key, json=json)
        return
    chosen = names or [one["name"] for one in _processes(server, api_key)]
    renewed = []
    for number, name in enumerate(chosen, 1):
        began_s = time.perf_counter()
        typer.echo(f"{number}/{len(chosen)}  {name} ...", nl=False, err=True)
        renewed.append(
            _ask("POST", f"{_PATH}/{quote(name, safe='')}/restart?alone={str(alone).lower()}", server, api_key)
        )
        took_s = time.perf_counter() - began_s
        typer.echo(f" back after {took_s:.1f} s, process {renewed[-1]['pid']}", err=True)
    if json:
        print_json(renewed)


def _restart_gateway(server: str, api_key: str | None, *, json: bool) -> None:
    """Wait until another process answers. Raises `EngineStartError` when the old one stays."""
    from chiasm.errors import EngineStartError

    began_s = time.perf_counter()
    found = _ask("POST", f"{_GATEWAY_PATH}/restart", server, api_key)
    former = found["pid"]
    while found["pid"] == former:
        if found["state"] == "serving":
            raise EngineStartError(found["error"] or "The server stays", hint="Its log says why")
        if time.perf_counter() - began_s > _TIMEOUT_S:
            raise EngineStartError(
                f"No other process serves after {_TIMEOUT_S:.0f} s", hint="The server's log says why"
            )
        time.sleep(_LOOK_INTERVAL_S)
        waiting = "?while=starting" if found["state"] == "starting" else ""  # each look is a line of the audit log
        found = _ask("GET", _GATEWAY_PATH + waiting, server, api_key)
    if json:
        print_json(found)
    else:
        took_s = time.perf_counter() - began_s
        typer.echo(f"Process {found['pid']} serves after {took_s:.1f} s, instead of {former}", err=True)


def _processes(server: str, api_key: str | None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = _ask("GET", _PATH, server, api_key)["workers"]
    return found


def _ask(method: str, path: str, server: str, api_key: str | None) -> Any:
    from chiasm.cli.client import call

    return call(server, api_key, method, path, timeout_s=_TIMEOUT_S)
