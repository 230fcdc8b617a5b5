"""What a policy is, and what all policies share once the prefilling worker is chosen."""

from collections.abc import Mapping, Sequence
from operator import add, mul
from typing import Protocol

import msgspec

from chiasm.errors import HandleExpiredError
from chiasm.routing.costs.model import StageCosts
from chiasm.routing.plan import (
    EncodeGroup,
    Plan,
    decode_candidates,
    encode_candidates,
    encodes_itself,
    fates_of,
    path_of,
)
from chiasm.routing.view import FleetView, ItemView, Job, WorkerView

DECODE_WEIGHT = 0.5
"""What a second after a first token counts, in seconds before one: the answer is whole later by either."""


class Policy(Protocol):
    """Chooses a way. Looks at nothing but its arguments and, at most, its own counter."""

    @property
    def name(self) -> str:
        """As in settings and receipts."""
        ...

    def plan(self, job: Job, fleet: FleetView) -> Plan:
        """The way for a request now.

        Raises:
            EngineDeadError: No worker is up for one of the stages.
            HandleExpiredError: Pictures are to be encoded, and nobody is left who can.
        """
        ...


def items_to_encode(job: Job, fleet: FleetView, prefill: WorkerView) -> list[ItemView]:
    """Pictures that nothing covers when `prefill` computes the prompt."""
    fates = fates_of(job, fleet, prefill)
    return [item for item in job.items if fates[item.identity] == "encode"]


def planned(
    job: Job, fleet: FleetView, *, policy: str, reason: str, prefill: WorkerView, decode: WorkerView | None = None
) -> Plan:
    """The plan that goes with a prefilling worker. Raises as `usual_groups` does.

    Without `decode`, the decoding worker with the least to do is taken where one is needed.
    """
    groups = usual_groups(items_to_encode(job, fleet, prefill), job, fleet, prefill)
    return assembled(job, fleet, policy=policy, reason=reason, prefill=prefill, groups=groups, decode=decode)


def usual_groups(
    wanted: Sequence[ItemView], job: Job, fleet: FleetView, prefill: WorkerView
) -> tuple[EncodeGroup, ...]:
    """Who encodes in this topology: the prefilling worker itself (no groups), or encoders; it, where none is left.

    `wanted` are the pictures that nothing covers when `prefill` computes the prompt.

    Raises:
        HandleExpiredError: Nobody is left who can.
    """
    if not wanted or encodes_itself(fleet, prefill):
        return ()
    groups = spread(wanted, encode_candidates(job, fleet), fleet)
    if not groups and not ("encode" in prefill.roles and fleet.has_local_fallback):
        raise HandleExpiredError(
            f"{len(wanted)} pictures are to be encoded and no encoder is up", hint="Look at the workers' health."
        )
    return groups


def assembled(
    job: Job,
    fleet: FleetView,
    *,
    policy: str,
    reason: str,
    prefill: WorkerView,
    groups: tuple[EncodeGroup, ...],
    decode: WorkerView | None = None,
) -> Plan:
    """A plan from its parts. Pictures that are neither covered nor in a group are left to `prefill`."""
    sent = {identity for group in groups for identity in group.identities}
    fates = fates_of(job, fleet, prefill)
    for identity, fate in fates.items():
        if fate == "encode" and identity not in sent:
            fates[identity] = "local"
    others = decode_candidates(job, fleet, prefill)
    if decode is None and others:
        decode = min(others, key=lambda one: (one.num_decoding, one.prefill_wait_s))
    if prefill.decodes(job.num_choices):
        decode = None
    encoding = {group.worker for group in groups} | ({prefill.name} if "local" in fates.values() else set())
    return Plan(
        path=path_of(job, prefill, fates, groups, fleet),
        policy=policy,
        reason=reason + _tried(sorted(encoding & fleet.costs.hoped)) + _undivided(job, prefill),
        prefill=prefill.name,
        decode=decode.name if decode is not None else None,
        groups=groups,
        fates=fates,
    )


def _tried(names: Sequence[str]) -> str:
    if not names:
        return ""
    is_, was = ("is", "it was") if len(names) == 1 else ("are", "they were")
    return f" {', '.join(names)} {is_} tried again: {was} slow when last seen to encode, a while ago."


def _undivided(job: Job, prefill: WorkerView) -> str:
    if "decode" in prefill.roles or not prefill.decodes(job.num_choices):
        return ""
    return f" {prefill.name} decodes as well: its keys and values can be taken once, not for {job.num_choices} choices."


def spread(items: Sequence[ItemView], encoders: Sequence[WorkerView], fleet: FleetView) -> tuple[EncodeGroup, ...]:
    """Share pictures out, the largest first, each to the encoder that will be through with it first.

    Where generations run, encoding costs more than its time: it holds them up as well.
    """
    work_s = {one.name: one.work_s for one in encoders}
    return Spreading(items, work_s, num_delayed(encoders, fleet), costs_of(encoders, fleet)).over(list(work_s))


def num_delayed(workers: Sequence[WorkerView], fleet: FleetView) -> dict[str, float]:
    """By worker: generations that a second of its work delays by a second, its own and those on the same cores."""
    crowded = [one for one in fleet.workers if one.crowding and one.num_decoding]
    found: dict[str, float] = {one.name: one.num_decoding for one in workers}
    for one in workers if crowded else ():
        others = [min(one.crowding, other.crowding) * other.num_decoding for other in crowded if other.name != one.name]
        found[one.name] += sum(others)
    return found


def costs_of(workers: Sequence[WorkerView], fleet: FleetView) -> StageCosts:
    """Costs to share pictures out by: who shares cores encodes equally fast (see `chiasm.routing.crowding`)."""
    costs, crowded = fleet.costs, {one.name for one in workers if one.crowding}
    if not crowded:
        return costs
    encode = {name: line for name, line in costs.encode.items() if name not in crowded}
    return msgspec.structs.replace(costs, encode=encode)


class Spreading:
    """The same pictures, shared out over one choice of encoders after the other."""

    def __init__(
        self,
        items: Sequence[ItemView],
        work_s: Mapping[str, float],
        num_delayed: Mapping[str, float],
        costs: StageCosts,
    ) -> None:
        """Take the pictures, and of all workers of which there may be a choice their work and whom it delays."""
        self._costs = costs
        self._work_s = work_s
        self._num_delayed = num_delayed
        self._items = sorted(items, key=lambda one: -one.num_pixels)
        self._costs_s: dict[int, dict[str, float]] = {}  # by pixels, which often all have the same of

    def over(self, names: Sequence[str]) -> tuple[EncodeGroup, ...]:
        """As `spread`, over workers of these names; of equals the first is taken."""
        if not names:
            return ()
        ends_s = [self._work_s[name] for name in names]
        strain = [1.0 + DECODE_WEIGHT * self._num_delayed[name] for name in names]
        shares: dict[int, list[ItemView]] = {}
        num_pixels, costs_s, weighed_s = -1, ends_s, ends_s
        for item in self._items:
            if item.num_pixels != num_pixels:
                num_pixels, each_s = item.num_pixels, self._each_s(item.num_pixels)
                costs_s = [each_s[name] for name in names]
                weighed_s = list(map(mul, costs_s, strain))
            found_s = list(map(add, ends_s, weighed_s))
            chosen = found_s.index(min(found_s))
            ends_s[chosen] += costs_s[chosen]
            shares.setdefault(chosen, []).append(item)
        return tuple([EncodeGroup(names[chosen], _in_order(shares[chosen])) for chosen in sorted(shares)])

    def _each_s(self, num_pixels: int) -> dict[str, float]:
        """What a picture of so many pixels costs each worker."""
        found = self._costs_s.get(num_pixels)
        if found is None:
            found = {name: self._costs.encode_s(name, num_pixels) for name in self._work_s}
            self._costs_s[num_pixels] = found
        return found


def _in_order(share: list[ItemView]) -> tuple[str, ...]:
    if len(share) > 1:
        share.sort(key=lambda one: one.positions)
    return tuple([one.identity for one in share])
