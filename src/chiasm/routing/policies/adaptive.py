"""The way that is predicted to finish first.

Ways differ in who prefills and in who encodes: the prefilling worker on its way, others, or several side by side. What
a way costs is the predicted time to the first token; what the answer's decoding will be slower for company; a quarter
of the delay of generations that run already; and what requests without pictures that come meanwhile will wait, so that
they find a worker not busy with media. A split must gain a tenth, so that noise does not send pictures to and fro.
"""

from collections.abc import Iterator

import msgspec

from chiasm.errors import HandleExpiredError
from chiasm.routing.plan import (
    EncodeGroup,
    Plan,
    decode_candidates,
    encode_candidates,
    encodes_itself,
    prefill_candidates,
)
from chiasm.routing.policies.base import assembled, items_to_encode, spread, usual_groups
from chiasm.routing.policies.least_work import by_work
from chiasm.routing.prediction import Outlook, decode_strain_s
from chiasm.routing.view import FleetView, Job, WorkerView

_HYSTERESIS = 0.1
_MAX_PREFILLS = 4
_MAX_ENCODERS = 8


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """One of the ways compared. `is_split` says that it leaves the usual way of encoding."""

    prefill: WorkerView
    groups: tuple[EncodeGroup, ...]
    first_token_s: float
    cost_s: float
    is_split: bool


class Adaptive:
    """Compares ways by predicted cost. Has no state: the same job and fleet give the same plan."""

    name = "adaptive"

    def plan(self, job: Job, fleet: FleetView) -> Plan:
        """See `Policy`."""
        ways, refusal = [], None
        for prefill in _worth_comparing(job, fleet):
            try:
                ways += list(_ways(job, fleet, prefill))
            except HandleExpiredError as error:
                refusal = error
        if not ways:
            assert refusal is not None, "a prefilling worker has a way, or a reason why not"
            raise refusal
        chosen = choose(ways)
        reason = explain(chosen, ways, job, fleet)
        return assembled(job, fleet, policy=self.name, reason=reason, prefill=chosen.prefill, groups=chosen.groups)


def choose(ways: list[Way]) -> Way:
    """The cheapest; but the cheapest of the usual ways when a split one gains too little on it."""
    best = min(ways, key=_cost)
    usual = min((way for way in ways if not way.is_split), key=_cost)
    return usual if best.cost_s >= (1.0 - _HYSTERESIS) * usual.cost_s else best


def _cost(way: Way) -> float:
    return way.cost_s


def explain(chosen: Way, ways: list[Way], job: Job, fleet: FleetView) -> str:
    """A sentence with the numbers that decided: those of the way taken, and of the best of another kind."""
    reason = f"{_what(chosen, job, fleet)}: first token predicted after {_ms(chosen.first_token_s)}"
    others = [way for way in ways if way.is_split != chosen.is_split] or [way for way in ways if way is not chosen]
    if not others:
        return f"{reason}; there is no other way."
    other = min(others, key=_cost)
    return (
        f"{reason}; {_what(other, job, fleet)}: after {_ms(other.first_token_s)} "
        f"(with delays of others, {_ms(chosen.cost_s)} and {_ms(other.cost_s)})."
    )


def _what(way: Way, job: Job, fleet: FleetView) -> str:
    name, num_wanted = way.prefill.name, len(items_to_encode(job, fleet, way.prefill))
    if way.groups:
        shares = ", ".join(f"{group.worker} encodes {len(group.identities)}" for group in way.groups)
        return f"{shares}, {name} prefills"
    if num_wanted:
        return f"{name} encodes {num_wanted} itself"
    if name in job.known:
        return f"{name} has {job.known_chars(name)} characters and {len(job.known_items(name))} pictures of the start"
    return f"{name} has nothing to encode" if job.items else f"text at {name}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms"


def _worth_comparing(job: Job, fleet: FleetView) -> list[WorkerView]:
    """The idlest workers, and those that have something of the request."""
    workers = sorted(prefill_candidates(job, fleet), key=by_work)
    holders = {name for item in job.items for name in item.holders} | set(job.known)
    return workers[:_MAX_PREFILLS] + [one for one in workers[_MAX_PREFILLS:] if one.name in holders]


def _ways(job: Job, fleet: FleetView, prefill: WorkerView) -> Iterator[Way]:
    """The usual way of encoding, and where workers encode for each other, two more. May raise `HandleExpiredError`."""
    outlook = Outlook(job, fleet, prefill)
    decode = min(decode_candidates(job, fleet, prefill), key=lambda one: one.num_decoding, default=prefill)
    decode_s = decode_strain_s(job, fleet, decode)
    for groups, is_split in _groupings(job, fleet, prefill):
        first_s = outlook.first_token_s(groups)
        yield Way(
            prefill=prefill,
            groups=groups,
            first_token_s=first_s,
            cost_s=first_s + decode_s + outlook.strain_on_others_s(groups) + outlook.strain_on_texts_s(groups),
            is_split=is_split,
        )


def _groupings(job: Job, fleet: FleetView, prefill: WorkerView) -> Iterator[tuple[tuple[EncodeGroup, ...], bool]]:
    """Who may encode, and whether that is other than usual: all with `prefill`, all but it."""
    yield usual_groups(job, fleet, prefill), False
    wanted = items_to_encode(job, fleet, prefill)
    if not wanted or not encodes_itself(fleet, prefill):
        return
    others = [one for one in sorted(encode_candidates(job, fleet), key=by_work) if one.name != prefill.name]
    tried: set[tuple[EncodeGroup, ...]] = set()
    beside = [[prefill, *others[:_MAX_ENCODERS]]] if prefill.encodes_for_others else []
    for encoders in (*beside, others[:_MAX_ENCODERS]):
        groups = spread(wanted, encoders, fleet)
        if groups not in tried and any(group.worker != prefill.name for group in groups):
            tried.add(groups)
            yield groups, True
