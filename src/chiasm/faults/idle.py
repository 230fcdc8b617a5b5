"""Whether a fleet has let go of everything."""

import asyncio
from collections.abc import Awaitable, Callable

from chiasm.errors import ChiasmError
from chiasm.faults.rig import Rig
from chiasm.routing.health import Refreshable

_HELD = ("num_running", "num_waiting", "num_open_requests", "num_held_embeddings", "num_pinned_blocks")
_TIMEOUT_S = 30.0
_LOOK_INTERVAL_S = 0.02


async def held_by(rig: Rig) -> dict[str, int]:
    """What requests hold now, by whom and what; empty when the fleet is idle."""
    counts = {
        "gateway: requests": rig.gateway.admission.num_open,
        "router: requests": rig.router.stats().num_open_requests,
        "spool: files": rig.spool.num_files,
    }
    for member in rig.router.fleet.members:
        try:
            if isinstance(member.worker, Refreshable):
                await member.worker.refresh()
        except ChiasmError:
            counts[f"{member.name}: no answer"] = 1
            continue
        stats = member.worker.stats()
        counts |= {f"{member.name}: {name.removeprefix('num_')}": getattr(stats, name) for name in _HELD}
        counts[f"{member.name}: unwell"] = not stats.is_healthy
    return {what: count for what, count in counts.items() if count}


async def offered_by(rig: Rig) -> dict[str, int]:
    """Tensors on offer, by worker."""
    held = await held_by(rig)
    offered = {one.name: one.worker.stats().num_offered_tensors for one in rig.router.fleet.members}
    return held | {f"{name}: offered tensors": count for name, count in offered.items() if count}


async def what_stays(look: Callable[[Rig], Awaitable[dict[str, int]]], rig: Rig) -> list[str]:
    """Wait until nothing is there any more; returns what stays."""
    deadline_s = asyncio.get_running_loop().time() + _TIMEOUT_S
    while True:
        held = await look(rig)
        if not held or asyncio.get_running_loop().time() > deadline_s:
            return [f"{what} stay: {count}" for what, count in held.items()]
        await asyncio.sleep(_LOOK_INTERVAL_S)
