"""Servers of several topologies side by side, one thread a worker, and what their workers counted."""

import argparse
import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import aiohttp

from chiasm.bench.grid.servers import Server, servers
from chiasm.bench.grid.spec import GridSpec, Topology

PROCESSES = {"e-pd": ("encoder", "prefill and decode"), "e-p-d": ("encoder", "prefill", "decode")}
_LOOKED_S = 1.2
"""More than two of the gateway's intervals between looks at its workers (`routing.health_interval_s`)."""


def ways_of(args: argparse.Namespace) -> dict[str, tuple[str, ...]]:
    """The topologies of a command line, each also with the settings of every `--against`."""
    ways: dict[str, tuple[str, ...]] = {name: (name,) for name in args.topologies}
    for settings in args.against or ():
        ways |= {f"{name} {' '.join(settings)}": (name, *settings) for name in args.topologies}
    return ways


@asynccontextmanager
async def fleets(ways: Mapping[str, Sequence[str]], *settings: str) -> AsyncIterator[dict[str, Server]]:
    """One server for each name: of the topology that comes first, with settings of its own after it."""
    topologies = []
    for name, (topology, *own) in ways.items():
        words = ["--topology", topology]
        for setting in ("engine.threads=1", *settings, *own):
            words += ["--set", setting]
        topologies.append(Topology(name=name, serve=tuple(words), processes=PROCESSES.get(topology, ())))
    spec = GridSpec(
        topologies=tuple(topologies), baseline=topologies[0].name, loads=(1.0,), environment={"OMP_NUM_THREADS": "1"}
    )
    async with servers(spec) as running:
        yield {server.name: server for server in running}


async def counters(server: Server) -> dict[str, float]:
    """Those of the workers, summed up, once the gateway has looked at all of them after the last answer."""
    await asyncio.sleep(_LOOKED_S)
    async with aiohttp.ClientSession() as session, session.get(f"{server.target.url}/metrics") as response:
        lines = [line.split() for line in (await response.text()).splitlines() if line.startswith("chiasm_worker_")]
    return {name.removeprefix("chiasm_worker_"): float(value) for name, value in lines if "{" not in name}
