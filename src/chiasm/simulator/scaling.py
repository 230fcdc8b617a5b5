"""Encoders that come and go by the signal that gateways export; what decides is what decides for a cluster, too."""

from collections.abc import Callable
from typing import Annotated

import msgspec
import simpy
from msgspec import Meta

from chiasm.gateway.autoscaling import mean_wait_s
from chiasm.protocol.fleet import FleetState
from chiasm.routing.autoscaler import Autoscaler, ScalingRule, Signal
from chiasm.simulator.clock import Process
from chiasm.simulator.front import Front
from chiasm.simulator.worker import SimulatedWorker

_FALL_PERIOD_S = 60.0
"""One encoder goes in so long, as `chiasm deploy` writes it."""

Seconds = Annotated[float, Meta(gt=0)]


class Scaling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of encoders.

    Attributes:
        max_encoders: The most there may be; the least is what the fleet begins with.
        queue_s: The target of `chiasm_encoder_queue_seconds`.
        start_s: From the decision to an encoder that takes work.
        period_s: Between decisions.
        calm_s: For how long fewer must be enough before one goes.
    """

    max_encoders: Annotated[int, Meta(ge=1)]
    queue_s: Seconds = 0.5
    start_s: Seconds = 30.0
    period_s: Seconds = 15.0
    calm_s: Seconds = 300.0


class Scaler:
    """Decides every period.

    Attributes:
        num_most: The most encoders there were.
    """

    def __init__(
        self, env: simpy.Environment, front: Front, scaling: Scaling, make: Callable[[int], SimulatedWorker]
    ) -> None:
        """Take a fleet over. `make` makes the n-th encoder that is added."""
        self._env = env
        self._front = front
        self._scaling = scaling
        self._make = make
        self._names = [name for name, one in front.workers.items() if set(one.info.roles) == {"encode"}]
        self._autoscaler = Autoscaler(
            ScalingRule(
                min_encoders=len(self._names),
                max_encoders=scaling.max_encoders,
                queue_s=scaling.queue_s,
                calm_s=scaling.calm_s,
                fall_period_s=_FALL_PERIOD_S,
            )
        )
        self._num_made = 0
        self._changed_s = 0.0
        self._encoder_s = 0.0
        self.num_most = len(self._names)

    def begin(self) -> None:
        """Decide from now on, for as long as the simulation runs."""
        self._env.process(self._run())

    def mean_encoders(self, elapsed_s: float) -> float:
        """How many there were, averaged over time."""
        whole = self._encoder_s + len(self._names) * max(elapsed_s - self._changed_s, 0.0)
        return whole / elapsed_s if elapsed_s else float(len(self._names))

    def _run(self) -> Process:
        while True:
            yield self._env.timeout(self._scaling.period_s)
            self._decide()

    def _decide(self) -> None:
        num_now = len(self._names)
        wanted = self._autoscaler.decide(self._env.now, self._signal()).num_wanted
        for _ in range(wanted - num_now):
            self._rise()
        if wanted < num_now:
            self._fall()

    def _signal(self) -> Signal:
        members = (self._front.fleet.find(name) for name in self._names)
        states = tuple(one.snapshot() for one in members if one is not None)
        return Signal(
            num_encoders=len(self._names),
            num_ready=sum(one.state == "ready" for one in states),
            queue_s=mean_wait_s(FleetState(topology="", policy="", members=states), "encode"),
        )

    def _rise(self) -> None:
        worker = self._make(self._num_made)
        self._num_made += 1
        self._count()
        self._names.append(worker.info.name)
        self.num_most = max(self.num_most, len(self._names))
        self._front.add(worker)
        self._env.process(self._start(worker.info.name))

    def _start(self, name: str) -> Process:
        yield self._env.timeout(self._scaling.start_s)
        if self._front.fleet.find(name) is not None:
            self._front.ready(name)

    def _fall(self) -> None:
        """The newest goes when it has done what it has."""
        self._count()
        name = self._names.pop()
        self._front.fleet.drain(name)
        self._env.process(self._leave(name))

    def _leave(self, name: str) -> Process:
        while self._front.fleet.get(name).num_open:
            yield self._env.timeout(self._scaling.period_s)
        self._front.fleet.remove(name)
        del self._front.workers[name]

    def _count(self) -> None:
        """Add up until now; the number is about to change."""
        self._encoder_s += len(self._names) * (self._env.now - self._changed_s)
        self._changed_s = self._env.now
