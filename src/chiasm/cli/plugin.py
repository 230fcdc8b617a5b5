"""`chiasm plugin`: packages with scorers of one's own."""

from pathlib import Path
from typing import Annotated

import typer

from chiasm.cli.commands import Commands
from chiasm.cli.options import Json

plugin = Commands(help="Write scorers of your own. See docs/guides/plugins.md.", no_args_is_help=True)


@plugin.command()
def new(
    name: Annotated[str, typer.Argument(help="Name of the package, such as quality-scorer.")],
    into: Annotated[Path, typer.Option(file_okay=False, help="Folder in which the package's folder is made.")] = Path(),
    as_json: Json = False,
) -> None:
    """Write a package with a small scorer, its tests, and entry points for Chiasm and for vLLM.

    Try:

      chiasm plugin new quality-scorer && pip install -e quality-scorer pytest && pytest quality-scorer
    """
    from chiasm.cli.printing import print_json
    from chiasm.pooling.plugin_package import write_plugin_package

    written = write_plugin_package(name, into)
    folder = into / name
    processor = name.replace("-", "_")
    if as_json:
        print_json({"folder": str(folder), "processor": processor, "files": [str(one) for one in written]})
        return
    for one in written:
        typer.echo(f"  {one}")
    typer.echo(f"\nNext: pip install -e {folder} pytest && pytest {folder}")
    typer.echo(f"      chiasm serve ./cross-encoder --set 'pooling.io_processors=[\"{processor}\"]'")
    typer.echo(f"      vllm serve ./cross-encoder --runner pooling --io-processor-plugin {processor}")
