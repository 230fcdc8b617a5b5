"""A calibration for a grid's servers: `chiasm profile` on them and on one of a single worker, and nothing of its cells.

Most costs are of the single worker, since what is asked of several at once tells little of one. What only several have
comes from the grid's own servers: transfers from those with stages apart, contention from two whole workers. They are
asked in turn, round by round, so that a slow minute is everybody's, and means of the middle over rounds leave it out.
"""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack

import msgspec

from benchmarks.quiet import Look, complaints, look
from chiasm.advisor.profile.asking import Asking
from chiasm.advisor.profile.interference import NUM_ANSWERS
from chiasm.advisor.profile.processes import processes_of
from chiasm.advisor.profile.runs import Profile, Runs, profile_of
from chiasm.advisor.profile.sharing import with_contention
from chiasm.bench.grid.servers import servers
from chiasm.bench.grid.spec import GridSpec, Topology
from chiasm.bench.server import ServerView
from chiasm.simulator.calibration import Calibration

SINGLE = "single worker"


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Profiles by server, and what the machine was like before each round and at the end."""

    profiles: dict[str, Profile]
    looks: tuple[Look, ...]

    @property
    def complaints(self) -> list[str]:
        """Why not to rely on it; nothing where the machine was quiet."""
        return complaints(self.looks)


def measure(spec: GridSpec, num_rounds: int) -> Measured:
    """Profile. All servers run meanwhile, as they do in a grid."""
    return asyncio.run(_measured(spec, num_rounds))


def combined(profiles: Mapping[str, Profile]) -> Calibration:
    """One calibration for all topologies of a grid."""
    costs = profiles[SINGLE].calibration
    for name, found in profiles.items():
        other = found.calibration
        if name.startswith("e-"):
            costs = msgspec.structs.replace(costs, transfer=other.transfer)
        if name == "e-pd":
            costs = _with_steps_beside(costs, other)
        if name == "e-p-d":
            costs = msgspec.structs.replace(costs, kv_transfer=other.kv_transfer)
        if name == "agg" and other.sharing is not None:
            costs = with_contention(costs, other.sharing.contention)
    return msgspec.structs.replace(costs, source=f"chiasm profile on {', '.join(profiles)}, in turn")


def _with_steps_beside(costs: Calibration, apart: Calibration) -> Calibration:
    """With what steps take longer while an encoder apart computes, beyond what sharing the cores explains."""
    beside, sharing = apart.interference, apart.sharing
    if beside is None or sharing is None or costs.sharing is None:
        return costs
    cores = apart.step_cores(NUM_ANSWERS, apart.step_s(NUM_ANSWERS))
    explained = sharing.slowdown_at(cores + sharing.encode) / sharing.slowdown_at(cores)
    more = max((1.0 + beside.step_by_encode) / explained - 1.0, 0.0)
    return msgspec.structs.replace(costs, sharing=msgspec.structs.replace(costs.sharing, step_by_encode=more))


async def _measured(spec: GridSpec, num_rounds: int) -> Measured:
    whole = next(one for one in spec.topologies if one.name == spec.baseline)
    single = Topology(name=SINGLE, serve=(*(whole.serve or ()), "--workers", "1"))
    looks = []
    async with AsyncExitStack() as stack:
        with_single = msgspec.structs.replace(spec, topologies=(*spec.topologies, single))
        running = await stack.enter_async_context(servers(with_single))
        all_runs = {}
        for server in running:
            if server.name != "auto":  # whole workers, as those of agg
                view = await stack.enter_async_context(ServerView(server.target))
                all_runs[server.name] = Runs(Asking(view), num_rounds, lambda *_: None, processes_of(server.target))
        for number in range(num_rounds):
            looks.append(look())
            for name, runs in all_runs.items():
                print(f"Round {number + 1} of {num_rounds}: {name}", flush=True)
                await runs.round()
        looks.append(look())
    profiles = {name: profile_of(runs, name) for name, runs in all_runs.items()}
    return Measured(profiles=profiles, looks=tuple(looks))
