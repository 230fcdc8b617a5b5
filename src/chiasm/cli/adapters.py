"""`chiasm adapters`: LoRA adapters of a running server."""

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from chiasm.cli.commands import Commands
from chiasm.cli.options import AdminKey, Json, Server
from chiasm.cli.printing import print_json
from chiasm.settings.paths import written_path

adapters = Commands(
    help="""List, load and unload LoRA adapters of a running server.

Clients name an adapter as their model. The server must allow the adapter's folder (adapters.roots), and have an
operator's key (scope admin).

  chiasm keys new operators --scope admin        a key, if there is none yet

  chiasm serve --set gateway.keys_file=keys.toml --set 'adapters.roots=["/srv/adapters"]'

  chiasm adapters load support /srv/adapters/support-v3
""",
    no_args_is_help=True,
)

_PATH = "/admin/adapters"


@adapters.command("list")
def list_adapters(server: Server = "http://127.0.0.1:8000", api_key: AdminKey = None, json: Json = False) -> None:
    """Print the adapters that clients may name, with the revision of their files."""
    found = _ask("GET", _PATH, server, api_key)["adapters"]
    if json:
        print_json(found)
        return
    lines = [("name", "revision", "rank", "memory", "projections", "folder")]
    lines += [
        (
            one["name"],
            one["revision"][:12],
            str(one["rank"]),
            f"{one['num_bytes'] / 2**20:.1f} MiB",
            ",".join(one["targets"]),
            one["path"],
        )
        for one in found
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines if found else ():
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    if not found:
        typer.echo("No adapters are loaded", err=True)


@adapters.command()
def load(
    name: Annotated[str, typer.Argument(help="What clients call it.")],
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Its folder on the server, as PEFT saves it.", show_default=False)
    ],
    server: Server = "http://127.0.0.1:8000",
    api_key: AdminKey = None,
    json: Json = False,
) -> None:
    """Load an adapter while the server runs. Its files are checked first; requests under way go on.

    Try:

      chiasm adapters load support /srv/adapters/support-v3 --server http://127.0.0.1:8000
    """
    body = {"name": name, "path": str(written_path(directory, "DIR").absolute())}
    view = _ask("POST", _PATH, server, api_key, body)
    if json:
        print_json(view)
        return
    typer.echo(f"'{view['name']}' is served, revision {view['revision'][:12]}, {view['num_bytes'] / 2**20:.1f} MiB")


@adapters.command()
def unload(
    name: Annotated[str, typer.Argument(help="What clients call it.")],
    server: Server = "http://127.0.0.1:8000",
    api_key: AdminKey = None,
    json: Json = False,
) -> None:
    """Let no new request name an adapter. Those under way finish, then its memory is free."""
    answer = _ask("DELETE", f"{_PATH}/{quote(name, safe='')}", server, api_key)
    if json:
        print_json(answer)
        return
    typer.echo(f"'{name}' is unloaded")


def _ask(method: str, path: str, server: str, api_key: str | None, body: dict[str, Any] | None = None) -> Any:
    from chiasm.cli.client import call

    return call(server, api_key, method, path, body)
