"""When a way through the fleet is predicted to reach its first token, and whom it delays."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from chiasm.routing.costs.line import Coefficients
from chiasm.routing.costs.model import StageCosts
from chiasm.routing.overlap import parts_of, saved_s
from chiasm.routing.plan import EncodeGroup, Plan, encodes_itself, fates_of
from chiasm.routing.policies.base import DECODE_WEIGHT
from chiasm.routing.view import FleetView, ItemView, Job, WorkerView

_MAX_TEXT_WEIGHT = 3.0
_CALL_WEIGHT = 3.0
"""What a call for embeddings takes from either end, in times that it makes its own request wait: there are further
steps for what comes of it, and threads that it wakes. Found by simulating a grid that was measured."""


def uncovered_tokens(job: Job, costs: StageCosts, worker: str, covered: Collection[str]) -> float:
    """Tokens that a worker has to compute of a prompt. `covered` pictures are in its prefix cache."""
    num_chars = job.num_chars - job.known_chars(worker)
    pixels = [item.num_pixels for item in job.items if item.identity not in covered for _ in item.positions]
    return costs.num_tokens(num_chars, pixels)


def expected_s(job: Job, costs: StageCosts, plan: Plan) -> dict[str, float]:
    """Seconds of work that a plan comes to, by stage, whoever does it and however much of it side by side."""
    covered = {identity for identity, fate in plan.fates.items() if fate == "prefix"}
    found = {"prefill": costs.prefill_s(plan.prefill, uncovered_tokens(job, costs, plan.prefill, covered))}
    where = {identity: plan.prefill for identity, fate in plan.fates.items() if fate == "local"}
    where |= {identity: group.worker for group in plan.groups for identity in group.identities}
    if where:
        pixels = {item.identity: item.num_pixels for item in job.items}
        found["encode"] = sum(costs.encode_s(worker, pixels[identity]) for identity, worker in where.items())
    return found


def decode_strain_s(job: Job, fleet: FleetView, decode: WorkerView) -> float:
    """What it counts that the answer takes longer for the generations that run beside it."""
    num_tokens = min(float(job.max_output_tokens), fleet.costs.output_tokens)
    return DECODE_WEIGHT * num_tokens * fleet.costs.step.per_unit_s * decode.num_decoding


class Needs(NamedTuple):
    """What a request leaves to do when one worker prefills it.

    Attributes:
        num_tokens: Of the prompt to compute.
        pixels: Of pictures to encode, here or elsewhere, by identity.
        wanted: Those of them that others may encode.
    """

    num_tokens: float
    pixels: Mapping[str, int]
    wanted: tuple[ItemView, ...]


def needs_of(job: Job, fleet: FleetView, prefill: WorkerView) -> Needs:
    """What nothing covers when `prefill` computes the prompt."""
    fates = fates_of(job, fleet, prefill)
    covered = {identity for identity, fate in fates.items() if fate == "prefix"}
    return Needs(
        num_tokens=uncovered_tokens(job, fleet.costs, prefill.name, covered),
        pixels={one.identity: one.num_pixels for one in job.items if fates[one.identity] in ("encode", "local")},
        wanted=tuple([item for item in job.items if fates[item.identity] == "encode"]),
    )


class Board:
    """What all ways of a request have in common: what each worker has to do.

    Attributes:
        work_s: Predicted work, by worker.
        num_decoding: Generations past their first token, by worker.
        delayed_s: What it counts, in seconds, that a worker is busy for a second longer: all that it has is late.
    """

    def __init__(self, job: Job, fleet: FleetView) -> None:
        self._job = job
        self._fleet = fleet
        self._holders = job.known.keys() | {name for item in job.items for name in item.holders}
        self._needs: dict[tuple[str, bool], Needs] = {}
        self.work_s = {one.name: one.encode_wait_s + one.prefill_wait_s for one in fleet.workers}
        self.num_decoding = {one.name: one.num_decoding for one in fleet.workers}
        self.delayed_s = {one.name: one.num_prefilling + DECODE_WEIGHT * one.num_decoding for one in fleet.workers}
        self._prefill_work_s = {one.name: self.work_s[one.name] for one in fleet.workers if "prefill" in one.roles}
        self._free_s = min(self._prefill_work_s.values(), default=0.0)
        self._idlest: list[tuple[float, str]] = []

    def has_something(self, worker: str) -> bool:
        """Whether a worker is known to have the prompt's start, or a picture of it."""
        return worker in self._holders

    def needs(self, prefill: WorkerView) -> Needs:
        """See `needs_of`: the same for all workers that have nothing of the request."""
        key = prefill.name if self.has_something(prefill.name) else "", encodes_itself(self._fleet, prefill)
        found = self._needs.get(key)
        if found is None:
            found = self._needs[key] = needs_of(self._job, self._fleet, prefill)
        return found

    def later_texts_s(self, added_s: Mapping[str, float]) -> float:
        """Summed waiting, in squared seconds, of texts that come evenly while all are busy, for work that is added.

        One goes to the worker that is free first, so that texts wait only while all are busy: until the least busy is
        free, half that time on average.
        """
        before_s, free_s = self._prefill_work_s, inf
        for name, seconds in added_s.items():
            if name in before_s:
                free_s = min(free_s, before_s[name] + seconds)
        for work_s, name in self._by_work():
            if name not in added_s:
                free_s = min(free_s, work_s)
                break
        return (free_s**2 - self._free_s**2) / 2

    def _by_work(self) -> list[tuple[float, str]]:
        """Workers that prefill, the idlest first."""
        if not self._idlest:
            self._idlest = sorted((work_s, name) for name, work_s in self._prefill_work_s.items())
        return self._idlest


class Forecast(NamedTuple):
    """Of one way: seconds to the first token from now, and what the delay of others counts.

    `crowd_s` is what of both comes of workers that take cores from each other.
    """

    first_token_s: float
    strain_s: float
    crowd_s: float = 0.0


class Outlook:
    """What becomes of a request when one worker prefills it, depending on who encodes.

    Attributes:
        prefill: The worker.
        wanted: Pictures that nothing covers there.
        prefill_s: Predicted seconds of computing the prompt.
    """

    def __init__(self, job: Job, fleet: FleetView, prefill: WorkerView, board: Board) -> None:
        needs = board.needs(prefill)
        self._job = job
        self._board = board
        self._fleet = fleet
        self._pixels = needs.pixels
        self._whole_s = self._encode_s(prefill.name, needs.pixels)
        self.prefill = prefill
        self.wanted = needs.wanted
        self.prefill_s = fleet.costs.prefill_s(prefill.name, needs.num_tokens)

    def forecast(self, groups: Sequence[EncodeGroup]) -> "Forecast":
        """What is predicted if the groups are encoded where they say, and the rest on the way."""
        groups_s = [self._encode_s(one.worker, one.identities) for one in groups]
        return self._forecast(groups, groups_s, self._local_s(groups))

    def _forecast(self, groups: Sequence[EncodeGroup], groups_s: Sequence[float], local_s: float) -> "Forecast":
        strain_s = self._strain_on_others_s(groups, groups_s, local_s)
        return Forecast(
            first_token_s=self._first_token_s(groups, groups_s, local_s),
            strain_s=strain_s + self._strain_of_calls_s(groups) + self._strain_on_texts_s(groups, groups_s, local_s),
        )

    def _first_token_s(self, groups: Sequence[EncodeGroup], groups_s: Sequence[float], local_s: float) -> float:
        """From now: what waits at workers, then encoding side by side, then the rest of the prompt."""
        name, costs, work_s = self.prefill.name, self._fleet.costs, self._board.work_s
        ready_s = work_s[name] + local_s
        if not groups:
            return ready_s + self.prefill_s
        ends_s = [work_s[one.worker] + seconds + costs.hop_s for one, seconds in zip(groups, groups_s, strict=True)]
        ready_s = max(ready_s, *ends_s)
        if any(group.worker != name for group in groups):
            ready_s += costs.take_s
        return ready_s + self.prefill_s - min(self._saved_s(groups), ready_s)

    def _saved_s(self, groups: Sequence[EncodeGroup]) -> float:
        return saved_s(self._job, self._fleet.costs, self.prefill.name, groups)

    def _strain_on_others_s(self, groups: Sequence[EncodeGroup], groups_s: Sequence[float], local_s: float) -> float:
        """What the delay of generations that run already counts."""
        delays_s = self.prefill.num_decoding * (self.prefill_s + local_s)
        for group, seconds in zip(groups, groups_s, strict=True):
            delays_s += self._board.num_decoding[group.worker] * seconds
        return DECODE_WEIGHT * delays_s

    def _strain_of_calls_s(self, groups: Sequence[EncodeGroup]) -> float:
        """What the delay counts of all that calls for embeddings keep waiting at their two ends."""
        delayed_s, name = self._board.delayed_s, self.prefill.name
        ends_s = [delayed_s[one.worker] + (delayed_s[name] if one.worker != name else 0.0) for one in groups]
        if not any(ends_s):
            return 0.0
        is_ahead = self._saved_s(groups) > 0.0
        calls = [len(parts_of(group)) if is_ahead else 1 for group in groups]
        each_s = [count * end_s for count, end_s in zip(calls, ends_s, strict=True)]
        return _CALL_WEIGHT * self._fleet.costs.hop_s * sum(each_s)

    def _strain_on_texts_s(self, groups: Sequence[EncodeGroup], groups_s: Sequence[float], local_s: float) -> float:
        """What the delay of requests without pictures that will come meanwhile counts.

        Their seconds count by as much more as their own work is less, within a limit.
        """
        if not self._pixels or not self._fleet.text_per_s:
            return 0.0
        added_s = {self.prefill.name: local_s + self.prefill_s}
        for group, seconds in zip(groups, groups_s, strict=True):
            added_s[group.worker] = added_s.get(group.worker, 0.0) + seconds
        waited_s = self._fleet.text_per_s * self._board.later_texts_s(added_s)
        ratio = (self._whole_s + self.prefill_s) / self._fleet.costs.text_prefill_s
        return waited_s * min(max(ratio, 1.0), _MAX_TEXT_WEIGHT)

    def _encode_s(self, worker: str, identities: Iterable[str]) -> float:
        line = self._encode_line(worker)
        return sum([line.at(self._pixels[identity]) for identity in identities])

    def _encode_line(self, worker: str) -> Coefficients:
        return self._fleet.costs.encode_line(worker)

    def _local_s(self, groups: Sequence[EncodeGroup]) -> float:
        """Seconds that the prefilling worker encodes on its way: what no group has."""
        if not groups:
            return self._whole_s
        sent = {identity for group in groups for identity in group.identities}
        return self._encode_s(self.prefill.name, [one for one in self._pixels if one not in sent])
