"""The router of a simulated fleet: production's own fleet, costs, coverage and policy decide."""

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec
import simpy

from chiasm.errors import EngineDeadError, HandleExpiredError, InvalidSettingError
from chiasm.routing.costs.arrivals import Arrivals
from chiasm.routing.costs.model import StageCosts
from chiasm.routing.fleet import Fleet
from chiasm.routing.plan import Plan
from chiasm.routing.policies.registry import make_policy
from chiasm.routing.recovery import Ladder
from chiasm.routing.sampling import Sampling
from chiasm.routing.view import Job
from chiasm.settings import RoutingSettings
from chiasm.simulator.calibration import Calibration, Sharing
from chiasm.simulator.clock import VirtualTime
from chiasm.simulator.host import Cores
from chiasm.simulator.record import Record
from chiasm.simulator.traffic import Request
from chiasm.simulator.worker import SimulatedWorker

if TYPE_CHECKING:
    from chiasm.protocol.worker import Worker

OnSpan = Callable[[str, str, float, float, int], None]
"""Told of a stage: worker, stage, start, end, number of the request."""

OnEnded = Callable[[int], None]
"""Told how many requests have ended."""

_TELL_EVERY = 1000
"""Requests that end between two times of telling."""
MAX_OPEN = 300_000
"""Requests under way at once: more are gigabytes, and a fleet that far behind does not catch up."""


class Ledger:
    """What all requests of a simulation come to, through however many gateways they came.

    Attributes:
        open_s: Integral of the number of requests under way, until `changed_s`.
        changed_s: When the last one came or ended.
        over: Happens when all have come and all have ended; fails when more are under way than there is memory for.
        num_deaths: Workers that died.
    """

    def __init__(self, env: simpy.Environment, fleet: str, on_ended: OnEnded = lambda _: None) -> None:
        self._env = env
        self._fleet = fleet
        self._on_ended = on_ended
        self._num_open = self._num_ended = 0
        self._have_all_come = False
        self.record = Record()
        self.open_s = 0.0
        self.changed_s = 0.0
        self.num_deaths = 0
        self.over = env.event()

    def come(self) -> None:
        """A request has come."""
        self._count(1)
        if self._num_open > MAX_OPEN and not self.over.triggered:
            error = InvalidSettingError(
                f"{MAX_OPEN:,} requests are under way at once after {self._env.now:,.0f} simulated seconds, and "
                f"{self._num_ended:,} have ended: {self._fleet} does not keep up",
                hint="Simulate a larger fleet, a lower rate, or fewer requests.",
            )
            self.over.fail(error)  # raised here it would be a failure of who sends requests

    def ended(self) -> None:
        """A request has ended, well or not."""
        self._count(-1)
        self._num_ended += 1
        if not self._num_ended % _TELL_EVERY:
            self._on_ended(self._num_ended)
        self._check_over()

    def _count(self, change: int) -> None:
        self.open_s += self._num_open * (self._env.now - self.changed_s)
        self.changed_s = self._env.now
        self._num_open += change

    def close(self) -> None:
        """No more requests come."""
        self._have_all_come = True
        self._check_over()

    def _check_over(self) -> None:
        if self._have_all_come and not self._num_open and not self.over.triggered:
            self.over.succeed()


class Front:
    """One gateway's router: what it knows of the fleet is its own.

    Attributes:
        truth: What stages really cost.
        known: What the router knows of that.
    """

    def __init__(  # noqa: PLR0913 - composed once
        self,
        env: VirtualTime,
        settings: RoutingSettings,
        calibration: Calibration,
        workers: Sequence[SimulatedWorker],
        costs: StageCosts,
        ledger: Ledger,
        cores: Cores,
        on_span: OnSpan | None = None,
        number: int = 0,
    ) -> None:
        """Take workers in.

        Args:
            env: Whose time it is.
            settings: As of a real router: topology, policy and what is tried after failures count.
            calibration: What stages really cost.
            workers: The fleet.
            costs: What the router knows of stages.
            ledger: Where requests are counted.
            cores: Where its own work is done, and transfers.
            on_span: Told of stages.
            number: Among several gateways: each draws another sample.
        """
        self.env = env
        self.settings = settings
        self.truth = calibration
        self.known = costs
        self.cores = cores
        self.sharing = calibration.sharing or Sharing(num_cores=1)
        self.clock = env
        self.texts = Arrivals()
        self.fleet = Fleet(settings, self.clock)
        self.ledger = ledger
        self.workers: dict[str, SimulatedWorker] = {}
        self._policy = make_policy(settings)
        self._sampling = Sampling(settings.max_candidates, number)
        self._on_span = on_span
        self._absent: dict[simpy.Event, None] = {}  # in order: what happens must not hang on addresses
        self._able: frozenset[str] = frozenset()
        self._able_of: object = None
        for worker in workers:
            self.add(worker)
            self.ready(worker.info.name)

    def add(self, worker: SimulatedWorker) -> None:
        """Take a worker in; it gets work when it is ready."""
        self.workers[worker.info.name] = worker
        self.fleet.add(worker.info.name, cast("Worker", worker))

    def ready(self, name: str) -> None:
        """A worker has proven itself: it gets work, and requests that wait for one look again."""
        self.fleet.get(name).mark_ready()
        waiting, self._absent = self._absent, {}
        for wait in waiting:
            wait.succeed(name)

    @property
    def may_overlap(self) -> frozenset[str]:
        """Workers that compute a prompt while embeddings are on their way."""
        if self._able_of is not self.fleet.members:
            able = [one.name for one in self.fleet.members if one.info.takes_late_embeddings]
            self._able, self._able_of = frozenset(able), self.fleet.members
        return self._able

    def plan(self, job: Job, ladder: Ladder) -> Plan:
        """A way for a request. Raises what a policy raises, and what a ladder says when it has no step left."""
        members = self._sampling.members(self.fleet, job)
        view = self.fleet.view(self.known, self.texts.per_s(self.env.now), members)
        if ladder.has_failures:
            ladder.check_time()
        try:
            return self._policy.plan(job, view)
        except (EngineDeadError, HandleExpiredError) as error:
            ladder.nobody_left(error)
            failed, failed_encoders = frozenset(ladder.failed), frozenset(ladder.failed_encoders)
            again = msgspec.structs.replace(job, failed=failed, failed_encoders=failed_encoders)
            return self._policy.plan(again, view)

    def returned(self, until_s: float) -> Generator[simpy.Event, Any, str | None]:
        """Wait for a worker to become ready; its name, or None when none did until then.

        As many may wait as like: a simulation has no gateway whose slots they would hold.
        """
        if until_s <= self.env.now:
            return None
        wait = self.env.event()
        self._absent[wait] = None
        yield self.env.any_of([wait, self.env.timeout(until_s - self.env.now)])
        self._absent.pop(wait, None)
        return wait.value if wait.triggered else None

    def note(self, worker: str, stage: str, start_s: float, request: Request) -> None:
        """A stage of a request is over now."""
        if self._on_span is not None:
            self._on_span(worker, stage, start_s, self.env.now, request.number)
