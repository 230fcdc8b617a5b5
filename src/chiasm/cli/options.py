"""Options that several commands have."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from chiasm.settings import ResolvedSettings

ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="TOML file with settings, one table per section.", show_default=False)
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.FIELD=VALUE",
        help="Change a setting, as in --set gateway.request_timeout_s=30; may be repeated. See `chiasm config show`.",
        show_default=False,
    ),
]
Server = Annotated[str, typer.Option(help="The server.")]
AdminKey = Annotated[
    str | None, typer.Option(envvar="CHIASM_ADMIN_KEY", help="An operator's key (scope admin).", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def resolved(file: Path | None, overrides: list[str] | None, **values: Any) -> "ResolvedSettings":
    """Settings from all sources; `values` are named options as section__field, None where not given."""
    from chiasm.settings import resolve

    given = {name.replace("__", "."): value for name, value in values.items() if value is not None}
    return resolve(file=file, overrides=overrides or (), values=given)
