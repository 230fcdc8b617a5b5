"""Adapters over a fleet: all that compute prompts and tokens must have the same one."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from chiasm.errors import AdapterError, ChiasmError, DeadlineExceededError, EngineDeadError, UnsupportedFeatureError
from chiasm.protocol.adapters import Adaptable, AdapterInfo, AdapterLoad, AdapterRef
from chiasm.routing.fleet import Fleet
from chiasm.routing.member import Member


async def load_everywhere(fleet: Fleet, load: AdapterLoad, timeout_s: float) -> AdapterInfo:
    """Have every member that prefills or decodes load an adapter; all or none keeps it.

    A member that is down, or joins later, reads the files when a request first means them, and refuses others.

    Raises:
        AdapterError: A member refuses the files, or they differ between members.
        UnsupportedFeatureError: A member computes with no adapters.
        EngineDeadError: There is no member to load it.
    """
    members = _speakers(fleet)
    if not members:
        raise EngineDeadError("No worker is there to load the adapter")
    results = await asyncio.gather(*(_load(one, load, timeout_s) for one in members), return_exceptions=True)
    infos = [result for result in results if isinstance(result, AdapterInfo)]
    failures = [result for result in results if isinstance(result, BaseException)]
    if not failures and len({info.ref.revision for info in infos}) == 1:
        return max(infos, key=lambda info: info.num_bytes)
    for ref in {info.ref for info in infos}:
        await unload_everywhere(fleet, ref, timeout_s)
    if failures:
        raise failures[0]
    raise AdapterError(
        f"The files of adapter '{load.name}' differ between workers", hint="Put the same files on every host"
    )


async def unload_everywhere(fleet: Fleet, ref: AdapterRef, timeout_s: float) -> None:
    """Have it forgotten. A member that does not answer needs it no more: no request will mean it."""
    await asyncio.gather(*(_unload(one, ref, timeout_s) for one in _speakers(fleet)))


def _speakers(fleet: Fleet) -> Sequence[Member]:
    members = {member.name: member for role in ("prefill", "decode") for member in fleet.with_role(role)}
    return list(members.values())


async def _load(member: Member, load: AdapterLoad, timeout_s: float) -> AdapterInfo:
    if not (member.info.takes_adapters and isinstance(member.worker, Adaptable)):
        raise UnsupportedFeatureError(
            f"Worker '{member.name}' computes with no adapters", hint="See the page on adapters for what it must allow"
        )
    try:
        async with asyncio.timeout(timeout_s):
            return await member.worker.load_adapter(load, timeout_s)
    except TimeoutError:
        raise DeadlineExceededError(f"Worker '{member.name}' has not loaded the adapter in time") from None


async def _unload(member: Member, ref: AdapterRef, timeout_s: float) -> None:
    if isinstance(member.worker, Adaptable):
        with suppress(ChiasmError, TimeoutError):
            async with asyncio.timeout(timeout_s):
                await member.worker.unload_adapter(ref, timeout_s)
