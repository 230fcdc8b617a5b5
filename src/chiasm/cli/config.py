"""`chiasm config`: what is set, and by whom."""

from chiasm.cli.commands import Commands
from chiasm.cli.options import ConfigFile, Json, Overrides, resolved
from chiasm.cli.printing import print_json

config = Commands(help="Look at settings.", no_args_is_help=True)


@config.callback()
def _group() -> None:
    """Keep `show` a subcommand although it is the only one."""


@config.command()
def show(config_file: ConfigFile = None, overrides: Overrides = None, json: Json = False) -> None:
    """Print every setting with its value and where the value came from.

    Sources, later ones win: default, --config file, environment (CHIASM_GATEWAY__PORT=9000), --set and named options.
    """
    rows = [
        {"name": name, "value": value, "source": source}
        for name, value, source in resolved(config_file, overrides).rows()
    ]
    if json:
        print_json(rows)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    table.add_column("setting", no_wrap=True)
    for column in ("value", "source"):
        table.add_column(column)
    for row in rows:
        is_default = row["source"] == "default"
        table.add_row(row["name"], repr(row["value"]), row["source"], style="dim" if is_default else "bold")
    Console(soft_wrap=True).print(table)
