"""What is predicted where workers take cores from each other.

Of n workers that compute at once, each takes 1 + crowding * (n - 1) times as long as alone. So what another has to do
costs a worker crowding times the part of it that is done while both compute: the smaller of the two amounts. With a
crowding of 1 nothing is gained by sharing out, and what any worker does delays the generations of all.
"""

from collections.abc import Collection, Mapping, Sequence

from chiasm.routing.costs.line import Coefficients
from chiasm.routing.plan import EncodeGroup
from chiasm.routing.policies.base import DECODE_WEIGHT, num_delayed
from chiasm.routing.prediction import Board, Forecast, Outlook
from chiasm.routing.view import FleetView, Job, WorkerView


class CrowdedBoard(Board):
    """See `Board`. Some of the workers share cores."""

    def __init__(self, job: Job, fleet: FleetView) -> None:
        super().__init__(job, fleet)
        crowding = {one.name: one.crowding for one in fleet.workers if one.crowding}
        self._crowding = crowding
        self._beside = {  # by worker: with whom it shares cores, and how far
            name: [(other, min(own, theirs)) for other, theirs in crowding.items() if other != name]
            for name, own in crowding.items()
        }
        self._num_delayed = num_delayed(fleet.workers, fleet)
        self._crowded_free_s = self._free_of(self.work_s)

    def crowding(self, worker: str) -> float:
        """How far a worker and others take cores from each other."""
        return self._crowding.get(worker, 0.0)

    def delay_s(self, worker: str, work_s: Mapping[str, float], allies: Collection[str] = ()) -> float:
        """How much later a worker is through with its work than it would be alone; all workers have theirs.

        It and its `allies` work for one request. That they are several gives them no larger share of the cores than one
        would get with all of their work: what the request would gain, others would lose.
        """
        own_s = work_s[worker]
        all_s = sum([work_s[name] for name in allies]) if allies else own_s
        delay_s = 0.0
        for other, crowding in self._beside.get(worker, ()):
            delay_s += crowding * min(own_s if other in allies else all_s, work_s[other])
        return delay_s

    def num_delayed(self, worker: str) -> float:
        """Generations that a second of a worker's work delays by a second, in all."""
        return self._num_delayed[worker]

    def later_texts_s(self, added_s: Mapping[str, float]) -> float:
        """See `Board`. Encoders that take cores from the workers for texts keep them waiting, too."""
        busy_s = {name: seconds + added_s.get(name, 0.0) for name, seconds in self.work_s.items()}
        return (self._free_of(busy_s) ** 2 - self._crowded_free_s**2) / 2

    def _free_of(self, work_s: Mapping[str, float]) -> float:
        return min([work_s[name] + self.delay_s(name, work_s) for name in self._prefill_work_s], default=0.0)


class CrowdedOutlook(Outlook):
    """See `Outlook`. What it forecasts says besides what of it comes of sharing cores.

    Workers of one host that share cores are taken to encode equally fast. What was learned of one and of the other
    differs by the company that each had; the mean is nearer to what either would take.
    """

    def __init__(self, job: Job, fleet: FleetView, prefill: WorkerView, board: CrowdedBoard) -> None:
        self._crowded_board = board
        super().__init__(job, fleet, prefill, board)

    def _forecast(self, groups: Sequence[EncodeGroup], groups_s: Sequence[float], local_s: float) -> Forecast:
        crowded = super()._forecast(groups, groups_s, local_s)
        alone_s = super()._first_token_s(groups, groups_s, local_s)
        alone_s += super()._strain_on_others_s(groups, groups_s, local_s)
        crowded_s = crowded.first_token_s + self._strain_on_others_s(groups, groups_s, local_s)
        return crowded._replace(crowd_s=crowded_s - alone_s)

    def _first_token_s(self, groups: Sequence[EncodeGroup], groups_s: Sequence[float], local_s: float) -> float:
        name, costs, board = self.prefill.name, self._fleet.costs, self._crowded_board
        work_s = dict(board.work_s)
        work_s[name] += local_s
        for group, seconds in zip(groups, groups_s, strict=True):
            work_s[group.worker] += seconds
        allies = {name, *(group.worker for group in groups)}
        ready_s = work_s[name] + board.delay_s(name, work_s, allies)
        for group in groups:
            ready_s = max(ready_s, work_s[group.worker] + costs.hop_s + board.delay_s(group.worker, work_s, allies))
        if any(group.worker != name for group in groups):
            ready_s += costs.take_s
        saved_s = min(self._saved_s(groups) * (1.0 - board.crowding(name)), ready_s)
        return ready_s + self.prefill_s + self._prefill_delay_s(groups, work_s) - saved_s

    def _prefill_delay_s(self, groups: Sequence[EncodeGroup], work_s: Mapping[str, float]) -> float:
        """By what others have left when the embeddings are there: all have done as much by then as whoever had most."""
        done_s = max(work_s[name] for name in (self.prefill.name, *(group.worker for group in groups)))
        left_s = {name: max(seconds - done_s, 0.0) for name, seconds in work_s.items()}
        return self._crowded_board.delay_s(self.prefill.name, left_s | {self.prefill.name: self.prefill_s})

    def _strain_on_others_s(self, groups: Sequence[EncodeGroup], groups_s: Sequence[float], local_s: float) -> float:
        board = self._crowded_board
        delays_s = board.num_delayed(self.prefill.name) * (self.prefill_s + local_s)
        for group, seconds in zip(groups, groups_s, strict=True):
            delays_s += board.num_delayed(group.worker) * seconds
        return DECODE_WEIGHT * delays_s

    def _encode_line(self, worker: str) -> Coefficients:
        is_crowded = self._crowded_board.crowding(worker) > 0.0
        return self._fleet.costs.encode_any if is_crowded else super()._encode_line(worker)
