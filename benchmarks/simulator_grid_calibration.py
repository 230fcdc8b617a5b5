"""A calibration for a grid's servers: `chiasm profile` on them and on one of a single worker, and nothing of its cells.

Most costs are of the single worker, since what is asked of several at once tells little of one. What only several have
comes from the grid's own servers: transfers from those with stages apart, contention from two whole workers.
"""

import asyncio
from collections.abc import Mapping

import msgspec

from chiasm.advisor.profile.asking import Asking
from chiasm.advisor.profile.processes import processes_of
from chiasm.advisor.profile.runs import Profile, Runs, profile_of
from chiasm.bench.grid.servers import Server, servers
from chiasm.bench.grid.spec import GridSpec, Topology
from chiasm.bench.server import ServerView
from chiasm.simulator.calibration import Calibration

SINGLE = "single worker"
_REPEATS_OF_OTHERS = 2


def measure(spec: GridSpec, num_repeats: int) -> dict[str, Profile]:
    """Profiles by server. All of them run meanwhile, as they do in a grid."""
    return asyncio.run(_measured(spec, num_repeats))


def combined(profiles: Mapping[str, Profile]) -> Calibration:
    """One calibration for all topologies of a grid."""
    costs = profiles[SINGLE].calibration
    for name, found in profiles.items():
        other = found.calibration
        if name.startswith("e-"):
            costs = msgspec.structs.replace(costs, transfer=other.transfer)
        if name == "e-p-d":
            costs = msgspec.structs.replace(costs, kv_transfer=other.kv_transfer)
        if name == "agg" and costs.sharing is not None and other.sharing is not None:
            sharing = msgspec.structs.replace(costs.sharing, contention=other.sharing.contention)
            costs = msgspec.structs.replace(costs, sharing=sharing)
    return msgspec.structs.replace(costs, source=f"chiasm profile on {', '.join(profiles)}")


async def _measured(spec: GridSpec, num_repeats: int) -> dict[str, Profile]:
    whole = next(one for one in spec.topologies if one.name == spec.baseline)
    single = Topology(name=SINGLE, serve=(*(whole.serve or ()), "--workers", "1"))
    found = {}
    async with servers(msgspec.structs.replace(spec, topologies=(*spec.topologies, single))) as running:
        for server in running:
            if server.name == "auto":  # whole workers, as those of agg
                continue
            print(f"Profiling {server.name} ...", flush=True)
            found[server.name] = await _profiled(server, num_repeats if server.name == SINGLE else _REPEATS_OF_OTHERS)
    return found


async def _profiled(server: Server, num_repeats: int) -> Profile:
    async with ServerView(server.target) as view:
        runs = Runs(Asking(view), num_repeats, lambda *_: None, processes_of(server.target))
        await runs.run()
    return profile_of(runs, server.name)
