"""`chiasm keys`: API keys with tenants and scopes, in a file that a running server follows."""

import datetime
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from chiasm.cli.commands import Commands
from chiasm.cli.options import Json
from chiasm.cli.printing import print_json

if TYPE_CHECKING:
    from chiasm.tenancy.keys import Scope

File = Annotated[Path, typer.Option("--file", help="The keys file, as in gateway.keys_file.")]
_UNITS_S = {"m": 60, "h": 3600, "d": 86_400}

keys = Commands(
    help="Make, list and revoke API keys. A server with gateway.keys_file follows within a second, without a restart.",
    no_args_is_help=True,
)


@keys.command()
def new(
    tenant: Annotated[str, typer.Argument(help="Who the key is for: lower-case letters, digits, '-' and '_'.")],
    file: File = Path("keys.toml"),
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            help="What it opens: infer, pool, metrics (numbers about the whole server) or admin (/admin/, and nothing "
            "else); may be repeated.",
            show_default="infer and pool",
        ),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Time until it ends, as in 90d, 12h or 30m.", show_default="never"),
    ] = None,
    json: Json = False,
) -> None:
    """Make a key and print it, once: the file keeps its hash only.

    To rotate a key: make a new one, give it to the tenant, revoke the old one.

    Try:

      chiasm keys new acme --file keys.toml

      chiasm keys new operators --scope admin --expires 90d

      chiasm serve --set gateway.keys_file=keys.toml
    """
    from chiasm.errors import InvalidSettingError
    from chiasm.tenancy.edit import new_key
    from chiasm.tenancy.keys import SCOPES

    scopes = list(dict.fromkeys(scope or ("infer", "pool")))
    if unknown := [one for one in scopes if one not in SCOPES]:
        raise InvalidSettingError(f"No scope '{unknown[0]}'", hint=f"There are {', '.join(sorted(SCOPES))}")
    until = None if expires is None else datetime.datetime.now(datetime.UTC) + _duration(expires)
    key = new_key(file, tenant, cast("list[Scope]", scopes), until and until.replace(microsecond=0))
    if json:
        print_json({"key": key, "id": key.split("-")[1], "tenant": tenant, "scopes": scopes})
        return
    typer.echo(key)
    typer.echo(f"For tenant '{tenant}', scopes {', '.join(scopes)}. It is not shown again.", err=True)


@keys.command("list")
def list_keys(file: File = Path("keys.toml"), json: Json = False) -> None:
    """Check the file and print its keys: id, tenant, scopes and times, not what opens anything."""
    import msgspec

    from chiasm.tenancy.file import read_keys_file

    found = read_keys_file(file).keys
    if json:
        rows = [msgspec.to_builtins(key) for key in found]
        print_json([{name: value for name, value in row.items() if name != "sha256"} for row in rows])
        return
    lines = [("id", "tenant", "scopes", "created", "expires")]
    lines += [(key.id, key.tenant, ", ".join(key.scopes), _day(key.created), _day(key.expires)) for key in found]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


@keys.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The key's id; it is also in the key, after 'chiasm-'.")],
    file: File = Path("keys.toml"),
) -> None:
    """Take a key out of the file. Requests under way finish; no new one gets in."""
    from chiasm.tenancy.edit import revoke_key

    revoke_key(file, key_id)
    typer.echo(f"Revoked {key_id}")


def _day(at: datetime.datetime | None) -> str:
    return "never" if at is None else f"{at:%Y-%m-%d %H:%M}"


def _duration(text: str) -> datetime.timedelta:
    from chiasm.errors import InvalidSettingError

    if not (found := re.fullmatch(r"([1-9]\d{0,5})([mhd])", text)):
        raise InvalidSettingError(f"'{text}' is no time", hint="Write 90d, 12h or 30m")
    return datetime.timedelta(seconds=int(found[1]) * _UNITS_S[found[2]])
