"""`chiasm memory`: what a running server's processes take of memory, and what a request adds."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from chiasm.cli.options import Json
from chiasm.cli.printing import print_json

if TYPE_CHECKING:
    from chiasm.observability.memory import WorkerMemory
    from chiasm.reporting.growth import Growth


def memory(
    url: Annotated[
        str, typer.Argument(metavar="[URL]", help="A running server of Chiasm's.")
    ] = "http://127.0.0.1:8000",
    requests: Annotated[
        int, typer.Option(min=0, max=1000, help="Send so many requests at once and measure what they add.")
    ] = 0,
    images: Annotated[int, typer.Option(min=0, max=100, help="Pictures in each of them.")] = 1,
    output_tokens: Annotated[int, typer.Option(min=1, help="Length of their answers.")] = 128,
    api_key: Annotated[
        str | None, typer.Option(envvar="CHIASM_API_KEY", help="Key with the scope metrics.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Show what a server takes of memory, process by process.

    Weights are fixed, requests come and go, caches are given up for room, and shared memory is read by other processes.
    These are what the parts of a worker use; what the system counts for the process (resident pages, the most so far)
    and what the allocator keeps stand apart, since pages that were never written are in none and freed ones may stay.

    Try:

      chiasm memory http://127.0.0.1:8000

      chiasm memory http://127.0.0.1:8000 --requests 8 --images 1

      chiasm memory --json
    """
    workers, growth = asyncio.run(_measured(url, api_key, requests, images, output_tokens))
    if json:
        print_json({"workers": workers, "growth": growth})
        return
    _print(workers, growth)


async def _measured(
    url: str, api_key: str | None, num_requests: int, images: int, output_tokens: int
) -> "tuple[tuple[WorkerMemory, ...], Growth | None]":
    from chiasm.bench.probe import probe
    from chiasm.bench.server import ServerView
    from chiasm.bench.target import parse_target
    from chiasm.bench.workload.classes import RequestClass
    from chiasm.reporting.growth import measure_growth, memory_of

    target = parse_target(url, api_key)
    async with ServerView(target) as server:
        growth = None
        if num_requests:
            dialect = await probe(target, {"chat"}, None)
            kind = RequestClass(images=images, output_tokens=output_tokens)
            growth = await measure_growth(server, dialect, kind, num_requests)
        return await memory_of(server), growth


def _print(workers: "tuple[WorkerMemory, ...]", growth: "Growth | None") -> None:
    from rich.console import Console

    from chiasm.reporting.memory_tables import growth_lines, part_table, process_table

    console = Console()
    console.print(process_table(workers))
    console.print()
    console.print(part_table(workers))
    for line in growth_lines(growth) if growth is not None else ():
        console.print(line, highlight=False)
