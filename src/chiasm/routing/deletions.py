"""Deletions over a fleet: of all members at once, but one server after another where forgetting needs a rest."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import msgspec

from chiasm.errors import ChiasmError, DeadlineExceededError, UnsupportedFeatureError
from chiasm.protocol.deletion import Deleted, Deletion, Forgetful
from chiasm.routing.fleet import Fleet
from chiasm.routing.member import Member

_ORDER = ("encode", "prefill", "decode")


@runtime_checkable
class Resting(Protocol):
    """A worker that answers no requests while it forgets."""

    @property
    def rests_to_forget(self) -> bool:
        """Whether it does."""
        ...


async def forget_everywhere(fleet: Fleet, deletion: Deletion, timeout_s: float) -> list[Deleted]:
    """What each member has forgotten, or the code of what kept it from that; `timeout_s` is each one's own.

    Where members rest meanwhile, those of one server do so together and the servers one after another, encoders first:
    consumers that have forgotten find nothing old there. Requests go to the others, where these play all roles.
    """
    resting = [one for one in fleet.members if isinstance(one.worker, Resting) and one.worker.rests_to_forget]
    servers: dict[str, list[Member]] = {}
    for member in sorted(resting, key=_stage):
        servers.setdefault(fleet.server_of(member.name), []).append(member)
    others = [one for one in fleet.members if one not in resting]
    found = await asyncio.gather(
        _in_turn(list(servers.values()), deletion, timeout_s), _together(others, deletion, timeout_s)
    )
    return [one for answers in found for one in answers]


async def _in_turn(servers: Sequence[Sequence[Member]], deletion: Deletion, timeout_s: float) -> list[Deleted]:
    found: list[Deleted] = []
    for members in servers:
        with _at_rest(members):
            found += await _together(members, deletion, timeout_s)
    return found


async def _together(members: Sequence[Member], deletion: Deletion, timeout_s: float) -> list[Deleted]:
    answers = await asyncio.gather(*(_forgotten(member, deletion, timeout_s) for member in members))
    return [one for answer in answers for one in answer]


async def _forgotten(member: Member, deletion: Deletion, timeout_s: float) -> tuple[Deleted, ...]:
    """What a member has forgotten under the name by which the fleet knows it, or why that is not known."""
    if not isinstance(member.worker, Forgetful):
        return (Deleted(worker=member.name, error=UnsupportedFeatureError.code),)
    try:
        async with asyncio.timeout(timeout_s):
            answer = await member.worker.forget(deletion, timeout_s)
    except TimeoutError:
        return (Deleted(worker=member.name, error=DeadlineExceededError.code),)
    except ChiasmError as error:
        return (Deleted(worker=member.name, error=error.code),)
    return tuple(msgspec.structs.replace(one, worker=member.name) for one in answer)


@contextmanager
def _at_rest(members: Sequence[Member]) -> Iterator[None]:
    for member in members:
        member.num_rests += 1
    try:
        yield
    finally:
        for member in members:
            member.num_rests -= 1


def _stage(member: Member) -> int:
    """The first stage that it plays for others: encoders are those that do nothing else."""
    roles = member.info.roles
    return _ORDER.index("encode" if roles == ("encode",) else "prefill" if "prefill" in roles else "decode")
