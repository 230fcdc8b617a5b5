"""`chiasm version`."""

import typer

from chiasm import __version__
from chiasm.cli.options import Json
from chiasm.cli.printing import print_json


def version(json: Json = False) -> None:
    """Print the version."""
    if json:
        print_json({"version": __version__})
    else:
        typer.echo(__version__)


def print_version(is_wanted: bool) -> None:
    """`chiasm --version`: print it and end."""
    if is_wanted:
        typer.echo(__version__)
        raise typer.Exit
