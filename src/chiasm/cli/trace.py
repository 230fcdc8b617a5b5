"""`chiasm trace`: traffic as it was, for simulate, advise and bench."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chiasm.cli.commands import Commands
from chiasm.cli.files import check_folders, write_file
from chiasm.cli.options import Json
from chiasm.cli.printing import print_json

if TYPE_CHECKING:
    from chiasm.advisor.receipts import Collected
    from chiasm.simulator.traffic import Traffic

trace = Commands(help="Traffic as it was, without its content: write it down, look at it.", no_args_is_help=True)


@trace.command()
def export(
    server: Annotated[str, typer.Argument(metavar="URL", help="A running server of Chiasm's.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write, a line for each request.")],
    seconds: Annotated[
        float, typer.Option(min=0, max=604_800, help="Go on for so long; 0 takes what the server has kept.")
    ] = 0.0,
    all_tenants: Annotated[
        bool, typer.Option("--all-tenants", help="All requests, not only the key's own; takes a key with scope admin.")
    ] = False,
    api_key: Annotated[
        str | None, typer.Option(envvar="CHIASM_API_KEY", help="A key of the server.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Write down when requests came and how large they were, from the receipts that a server keeps.

    Nothing of their content is in it: a picture is its size and a hash with a secret of the server's own, so that it
    can be seen when it comes again. A server keeps the last gateway.max_receipts; with --seconds they are read as they
    come, and what came before Ctrl+C or the server's end is written. Failed requests are left out and counted.

    Try:

      chiasm trace export http://127.0.0.1:8000 -o trace.jsonl

      CHIASM_API_KEY=... chiasm trace export http://127.0.0.1:8000 -o trace.jsonl --seconds 3600 --all-tenants

      chiasm advise --calibration costs.json --trace trace.jsonl
    """
    from chiasm.errors import InvalidSettingError

    check_folders(out)
    found = _collected(server, api_key, all_tenants, seconds)
    if not len(found):
        raise InvalidSettingError(
            f"The server has no receipts of finished requests ({found.num_skipped} others)",
            hint="Send it requests first, or export for some --seconds.",
        )
    write_file(out, found.lines())
    if json:
        counts = {"num_requests": len(found), "num_skipped": found.num_skipped, "num_gaps": found.num_gaps}
        print_json({"file": str(out)} | counts)
    else:
        left_out = f"; left out, as failed or without output: {found.num_skipped}" if found.num_skipped else ""
        typer.echo(f"{len(found)} requests written to {out}{left_out}.")
    if found.num_gaps:
        text = f"Requests may be missing at {found.num_gaps} places: the server kept fewer than came in two seconds."
        typer.echo(f"{text} Raise gateway.max_receipts.", err=True)


@trace.command()
def show(
    file: Annotated[
        Path, typer.Argument(help="A trace: of ours, of Mooncake's form, or AIPerf's profile_export.jsonl.")
    ],
    json: Json = False,
) -> None:
    """Say what a trace comes to: rate, classes, and their means.

    Try:

      chiasm trace show trace.jsonl
    """
    from chiasm.simulator.traces.lines import TracePicture
    from chiasm.simulator.traces.trace import read_trace

    found = read_trace(file, TracePicture())
    if json:
        print_json(found.likeness)
    else:
        _print(found.likeness)


def _collected(server: str, api_key: str | None, is_admin: bool, for_s: float) -> "Collected":
    """Collect; on a terminal, says on standard error how many there are. Keeps what came before an interruption."""
    from rich.console import Console

    from chiasm.advisor.receipts import Collected, collect
    from chiasm.bench.target import parse_target
    from chiasm.errors import EngineError

    found, target = Collected(), parse_target(server, api_key)
    console = Console(stderr=True)
    with console.status("Reading receipts") as status:

        def on_seen(num_requests: int, elapsed_s: float) -> None:
            status.update(f"{num_requests} requests after {elapsed_s:.0f} of {for_s:.0f} s")

        try:
            asyncio.run(collect(target, found, is_admin=is_admin, for_s=for_s, on_seen=on_seen))
        except (EngineError, KeyboardInterrupt) as error:
            if not len(found):
                raise
            typer.echo(f"Ended before its time: {str(error) or 'interrupted'}", err=True)
    return found


def _print(traffic: "Traffic") -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("Class", box=None, pad_edge=False)
    for name in ("share", "pictures", "pixels", "visual tokens", "text tokens", "output tokens", "repeated"):
        table.add_column(name, justify="right")
    for one in traffic.classes:
        pixels, visual = (one.num_pixels, one.visual_tokens) if one.num_images else ("", "")
        sizes = (one.num_images, pixels, visual, one.text_tokens, one.output_tokens)
        table.add_row(escape(one.name), f"{one.share:.0%}", *map(str, sizes), f"{one.repeat_share:.0%}")
    console = Console()
    console.print(f"{traffic.num_requests} requests, {traffic.rate_per_s:,.3f} a second. Means of each class:")
    console.print(table)
