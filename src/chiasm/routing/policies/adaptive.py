"""The way that is predicted to finish first.

Ways differ in who prefills and in who encodes: the prefilling worker on its way, others, or several side by side. What
a way costs is the predicted time to the first token; half of what the answer's decoding will be slower for company;
half of the delay of generations that run already; what calls for embeddings take from all who wait at their two ends;
and what requests without pictures that come meanwhile will wait, so that they find a worker not busy with media. A
split must gain a tenth, so that noise does not send pictures to and fro.
Where workers take cores from each other, what they do side by side is predicted to take longer accordingly.
"""

from collections.abc import Callable, Iterator

import msgspec

from chiasm.errors import HandleExpiredError
from chiasm.routing.crowding import CrowdedBoard, CrowdedOutlook
from chiasm.routing.plan import (
    EncodeGroup,
    Plan,
    decode_candidates,
    encode_candidates,
    encodes_itself,
    prefill_candidates,
)
from chiasm.routing.policies.base import Spreading, assembled, costs_of, num_delayed, usual_groups
from chiasm.routing.policies.least_work import by_work
from chiasm.routing.prediction import Board, Outlook, decode_strain_s
from chiasm.routing.view import FleetView, ItemView, Job, WorkerView

_HYSTERESIS = 0.1
_MAX_PREFILLS = 4
_MAX_ENCODERS = 8


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """One of the ways compared.

    Attributes:
        crowd_s: What of `cost_s` comes of workers that take cores from each other.
        num_wanted: Pictures that nothing covers on it.
        is_split: It leaves the usual way of encoding.
    """

    prefill: WorkerView
    groups: tuple[EncodeGroup, ...]
    first_token_s: float
    cost_s: float
    num_wanted: int
    is_split: bool
    crowd_s: float = 0.0


class Adaptive:
    """Compares ways by predicted cost. Has no state: the same job and fleet give the same plan."""

    name = "adaptive"

    def plan(self, job: Job, fleet: FleetView) -> Plan:
        """See `Policy`."""
        ways, refusal = [], None
        is_crowded = any(one.crowding for one in fleet.workers)
        board = CrowdedBoard(job, fleet) if is_crowded else Board(job, fleet)
        idlest_first = msgspec.structs.replace(fleet, workers=tuple(sorted(fleet.workers, key=by_work)))
        groupings = _Groupings(job, fleet, idlest_first, board)
        for prefill in _worth_comparing(job, idlest_first, board):
            try:
                ways += _ways(_outlook(job, fleet, prefill, board), groupings, job, fleet)
            except HandleExpiredError as error:
                refusal = error
        if not ways:
            assert refusal is not None, "a prefilling worker has a way, or a reason why not"
            raise refusal
        chosen = choose(ways)
        reason = explain(chosen, ways, job)
        return assembled(job, fleet, policy=self.name, reason=reason, prefill=chosen.prefill, groups=chosen.groups)


def _outlook(job: Job, fleet: FleetView, prefill: WorkerView, board: Board) -> Outlook:
    if isinstance(board, CrowdedBoard):
        return CrowdedOutlook(job, fleet, prefill, board)
    return Outlook(job, fleet, prefill, board)


def _cost(way: Way) -> float:
    return way.cost_s


def _alone_cost(way: Way) -> float:
    return way.cost_s - way.crowd_s


def _own_cost(way: Way) -> float:
    return way.first_token_s


def choose(ways: list[Way], cost: Callable[[Way], float] = _cost) -> Way:
    """The cheapest; but the cheapest of the usual ways when a split one gains too little on it."""
    best = min(ways, key=cost)
    usual = min((way for way in ways if not way.is_split), key=cost)
    return usual if cost(best) >= (1.0 - _HYSTERESIS) * cost(usual) else best


def explain(chosen: Way, ways: list[Way], job: Job) -> str:
    """A sentence with the numbers that decided: those of the way taken, and of the best of another kind."""
    reason = f"{_what(chosen, job)}: first token predicted after {_ms(chosen.first_token_s)}"
    others = [way for way in ways if way.is_split != chosen.is_split] or [way for way in ways if way is not chosen]
    if not others:
        return f"{reason}; there is no other way."
    other = min(others, key=_cost)
    return (
        f"{reason}; {_what(other, job)}: after {_ms(other.first_token_s)} "
        f"(with delays of others, {_ms(chosen.cost_s)} and {_ms(other.cost_s)}).{_why_not(chosen, ways, job)}"
    )


def _why_not(chosen: Way, ways: list[Way], job: Job) -> str:
    """What would be done, were cores not shared or nobody else delayed, where that is of another kind."""
    alone = choose(ways, _alone_cost)
    if any(way.crowd_s for way in ways) and alone.is_split != chosen.is_split:
        taken = f"{_what(alone, job)} (with delays of others, {_ms(_alone_cost(alone))})"
        return f" That is because workers take cores from each other: else {taken}."
    own = choose(ways, _own_cost)
    if own.is_split != chosen.is_split:
        return f" That is for the sake of others: else {_what(own, job)} (first token after {_ms(own.first_token_s)})."
    return ""


def _what(way: Way, job: Job) -> str:
    name = way.prefill.name
    if way.groups:
        shares = ", ".join(f"{group.worker} encodes {len(group.identities)}" for group in way.groups)
        return f"{shares}, {name} prefills"
    if way.num_wanted:
        return f"{name} encodes {way.num_wanted} itself"
    if name in job.known:
        return f"{name} has {job.known_chars(name)} characters and {len(job.known_items(name))} pictures of the start"
    return f"{name} has nothing to encode" if job.items else f"text at {name}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms"


def _worth_comparing(job: Job, idlest_first: FleetView, board: Board) -> list[WorkerView]:
    """The idlest workers, and those that have something of the request."""
    workers = prefill_candidates(job, idlest_first)
    return workers[:_MAX_PREFILLS] + [one for one in workers[_MAX_PREFILLS:] if board.has_something(one.name)]


def _ways(outlook: Outlook, groupings: "_Groupings", job: Job, fleet: FleetView) -> list[Way]:
    """The usual way of encoding, and where workers encode for each other, two more. May raise `HandleExpiredError`."""
    decode = min(decode_candidates(job, fleet, outlook.prefill), key=_company, default=outlook.prefill)
    decode_s = decode_strain_s(job, fleet, decode)
    found = []
    for groups, is_split in groupings.of(outlook.wanted, outlook.prefill):
        forecast = outlook.forecast(groups)
        found.append(
            Way(
                prefill=outlook.prefill,
                groups=groups,
                first_token_s=forecast.first_token_s,
                cost_s=forecast.first_token_s + decode_s + forecast.strain_s,
                num_wanted=len(outlook.wanted),
                is_split=is_split,
                crowd_s=forecast.crowd_s,
            )
        )
    return found


def _company(worker: WorkerView) -> int:
    return worker.num_decoding


class _Groupings:
    """Who may encode what, for one request."""

    def __init__(self, job: Job, fleet: FleetView, idlest_first: FleetView, board: Board) -> None:
        """Look at a fleet, and at the same one in another order."""
        self._job = job
        self._fleet = fleet
        self._usual: dict[tuple[ItemView, ...], tuple[EncodeGroup, ...]] = {}
        self._idlest_first = idlest_first
        self._board = board
        self._encoders: list[str] | None = None
        self._spreadings: dict[tuple[ItemView, ...], Spreading] = {}

    def of(self, wanted: tuple[ItemView, ...], prefill: WorkerView) -> Iterator[tuple[tuple[EncodeGroup, ...], bool]]:
        """The usual way, and where workers encode for each other, all with `prefill` and all but it.

        Each with whether it is another than the usual.

        Raises:
            HandleExpiredError: There is no usual way.
        """
        if not wanted or not encodes_itself(self._fleet, prefill):
            yield self._apart(wanted, prefill) if wanted else (), False
            return
        yield (), False
        others = [name for name in self._idlest() if name != prefill.name][:_MAX_ENCODERS]
        if not others:
            return
        spreading = self._spreading(wanted)
        if prefill.encodes_for_others:
            groups = spreading.over([prefill.name, *others])
            is_alone, is_among = len(groups) == 1, any(group.worker == prefill.name for group in groups)
            if not (is_alone and is_among):
                yield groups, True
            if not is_among:
                return  # without it they would be the same
        yield spreading.over(others), True

    def _apart(self, wanted: tuple[ItemView, ...], prefill: WorkerView) -> tuple[EncodeGroup, ...]:
        """By encoders apart: the same for every prefilling worker, as long as there are any."""
        groups = self._usual.get(wanted)
        if not groups:
            groups = self._usual[wanted] = usual_groups(wanted, self._job, self._fleet, prefill)
        return groups

    def _idlest(self) -> list[str]:
        """Encoders, one more than a way has of them."""
        if self._encoders is None:
            able = encode_candidates(self._job, self._idlest_first)
            names = [one.name for one in able if not _is_on_trial(one, self._fleet)]
            self._encoders = names[: _MAX_ENCODERS + 1]
        return self._encoders

    def _spreading(self, wanted: tuple[ItemView, ...]) -> Spreading:
        found = self._spreadings.get(wanted)
        if found is None:
            workers = self._fleet.workers
            delayed, costs = num_delayed(workers, self._fleet), costs_of(workers, self._fleet)
            found = self._spreadings[wanted] = Spreading(wanted, self._board.work_s, delayed, costs)
        return found


def _is_on_trial(encoder: WorkerView, fleet: FleetView) -> bool:
    """Whether an encoder, of which nothing is known yet, has its first call under way: no more is staked on it."""
    return encoder.is_encoder_only and encoder.name not in fleet.costs.encode and encoder.encode_wait_s > 0.0
