"""What a policy is, and what all policies share once the prefilling worker is chosen."""

from collections.abc import Sequence
from operator import add, mul
from typing import Protocol

from chiasm.errors import HandleExpiredError
from chiasm.routing.plan import (
    EncodeGroup,
    Plan,
    decode_candidates,
    encode_candidates,
    encodes_itself,
    fate_of,
    path_of,
)
from chiasm.routing.view import FleetView, ItemView, Job, WorkerView

EXTERNALITY = 0.25
"""What a second of others' delay counts, in seconds of one's own."""


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
    return [item for item in job.items if fate_of(item, job, fleet, prefill) == "encode"]


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
    fates = {item.identity: fate_of(item, job, fleet, prefill) for item in job.items}
    for identity, fate in fates.items():
        if fate == "encode" and identity not in sent:
            fates[identity] = "local"
    others = decode_candidates(job, fleet, prefill)
    if decode is None and others:
        decode = min(others, key=lambda one: (one.num_decoding, one.prefill_wait_s))
    return Plan(
        path=path_of(prefill, fates, groups, fleet),
        policy=policy,
        reason=reason,
        prefill=prefill.name,
        decode=decode.name if decode is not None else None,
        groups=groups,
        fates=fates,
    )


def spread(items: Sequence[ItemView], encoders: Sequence[WorkerView], fleet: FleetView) -> tuple[EncodeGroup, ...]:
    """Share pictures out, the largest first, each to the encoder that will be through with it first.

    Where generations run, encoding costs more than its time: it holds them up as well.
    """
    if not encoders:
        return ()
    strain = [1.0 + EXTERNALITY * one.num_decoding for one in encoders]
    ends_s = [one.work_s for one in encoders]
    shares: list[list[ItemView]] = [[] for _ in encoders]
    lines = [fleet.costs.encode_line(one.name) for one in encoders]
    costs_s: list[float] = []
    weighed_s: list[float] = []
    num_pixels = -1
    for item in sorted(items, key=lambda one: -one.num_pixels):
        if item.num_pixels != num_pixels:  # often all are of one size
            num_pixels = item.num_pixels
            costs_s = [line.at(num_pixels) for line in lines]
            weighed_s = list(map(mul, costs_s, strain))
        found_s = list(map(add, ends_s, weighed_s))
        chosen = found_s.index(min(found_s))
        ends_s[chosen] += costs_s[chosen]
        shares[chosen].append(item)
    return tuple(
        [
            EncodeGroup(encoder.name, tuple([item.identity for item in sorted(share, key=lambda one: one.positions)]))
            for encoder, share in zip(encoders, shares, strict=True)
            if share
        ]
    )
