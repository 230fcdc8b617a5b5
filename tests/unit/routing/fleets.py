"""Fleets of scripted workers behind a router, and what came of a request to one."""

from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

from chiasm.errors import ChiasmError
from chiasm.protocol.generation import RequestFinished, RouteTaken, TokenEvent
from chiasm.routing.router import Router
from chiasm.settings import RoutingSettings
from tests.unit.routing.scripted import ALL, ScriptedWorker, Tensors
from tests.unit.routing.virtual_time import LoopClock

TOPOLOGIES = {
    "agg": {"w0": ALL, "w1": ALL},
    "auto": {"w0": ALL, "w1": ALL},
    "e-pd": {"e0": ("encode",), "e1": ("encode",), "pd0": ALL, "pd1": ALL},
    "e-p-d": {
        "e0": ("encode",),
        "e1": ("encode",),
        "p0": ("encode", "prefill"),
        "p1": ("encode", "prefill"),
        "d0": ("decode",),
        "d1": ("decode",),
    },
}


class Fleet:
    """A router and the scripted workers behind it, by name."""

    def __init__(self, topology, workers=None, *, takes_late=False, prior=None, **settings) -> None:
        settings.setdefault("policy", "least_work")
        self.tensors = Tensors()
        self.router = Router(RoutingSettings(topology=topology, **settings), clock=LoopClock(), prior=prior)
        self.workers = {}
        for name, roles in (TOPOLOGIES[topology] if workers is None else workers).items():
            self.add(name, roles, takes_late_embeddings=takes_late and "prefill" in roles)

    def add(self, name, roles=ALL, **fields):
        worker = self.workers[name] = ScriptedWorker(name, self.tensors, roles, **fields)
        self.router.fleet.add(name, worker).mark_ready()
        return worker

    def __getitem__(self, name):
        return self.workers[name]

    def member(self, name):
        return next(one for one in self.router.fleet.members if one.name == name)

    def assert_idle(self) -> None:
        """Nothing is held by anyone once no request is open."""
        stats = self.router.stats()
        assert (stats.num_open_requests, stats.num_running) == (0, 0)
        for member in self.router.fleet.members:
            assert (member.num_open, member.encoding.wait_s(), member.prefilling.wait_s()) == (0, 0.0, 0.0)
        assert not len(self.router._parts.encode.flights)
        assert not self.router._parts.encode.flights._by_picture


@asynccontextmanager
async def serving(topology, workers=None, **settings):
    fleet = Fleet(topology, workers, **settings)
    yield fleet
    fleet.assert_idle()
    await fleet.router.aclose()
    assert all(worker.is_closed for worker in fleet.workers.values() if worker.name)


@dataclass
class Outcome:
    words: list[str] = field(default_factory=list)
    routes: list = field(default_factory=list)
    finished: RequestFinished | None = None
    error: ChiasmError | None = None

    @property
    def route(self):
        return self.routes[-1]

    @property
    def attempts(self):
        return [(one.stage, one.worker, one.outcome) for one in self.route.attempts]


async def outcome_of(fleet, request) -> Outcome:
    """Read a request to its end."""
    outcome = Outcome()
    try:
        async with aclosing(fleet.router.generate(request)) as events:
            async for event in events:
                if isinstance(event, TokenEvent):
                    outcome.words.append(event.text.strip())
                elif isinstance(event, RouteTaken):
                    outcome.routes.append(event.route)
                elif isinstance(event, RequestFinished):
                    outcome.finished = event
    except ChiasmError as error:
        outcome.error = error
    return outcome
