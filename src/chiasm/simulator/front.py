"""The gateway and the router of a simulated fleet: production's own fleet, costs, coverage and policy decide."""

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, cast

import simpy

from chiasm.protocol.media import EmbeddingHandle, EmbeddingMetadata
from chiasm.routing.costs.arrivals import Arrivals
from chiasm.routing.costs.model import StageCosts
from chiasm.routing.coverage.prefixes import Prefix
from chiasm.routing.fleet import Fleet
from chiasm.routing.plan import EncodeGroup, Plan
from chiasm.routing.policies.registry import make_policy
from chiasm.routing.prediction import uncovered_tokens
from chiasm.routing.sampling import Sampling
from chiasm.routing.view import ItemView, Job
from chiasm.settings import RoutingSettings
from chiasm.simulator.calibration import Calibration
from chiasm.simulator.engine import Process
from chiasm.simulator.known import CHARS_PER_TOKEN
from chiasm.simulator.record import Record
from chiasm.simulator.traffic import Picture, Request
from chiasm.simulator.worker import SimulatedWorker

if TYPE_CHECKING:
    from chiasm.protocol.worker import Worker

_ON_OFFER = EmbeddingHandle(
    connector="simulated",
    key="",
    metadata=EmbeddingMetadata(
        identity="0" * 64,
        num_embeddings=1,
        shape=(1, 1),
        dtype="float32",
        model_revision="simulated",
        processor_revision="simulated",
        checksum="",
    ),
)
"""Stands for any embedding that is on offer: nobody in a simulation takes one over."""


class Front:
    """Lets requests in, sends each its way, and records what became of it.

    Attributes:
        open_s: Integral of the number of requests under way, until `changed_s`.
        changed_s: When the last one came or ended.
    """

    def __init__(
        self,
        env: simpy.Environment,
        settings: RoutingSettings,
        calibration: Calibration,
        workers: Sequence[SimulatedWorker],
        costs: StageCosts,
        on_span: Callable[[str, str, float, float, int], None] | None = None,
    ) -> None:
        """Take workers in.

        Args:
            env: Whose time it is.
            settings: As of a real router: topology and policy count.
            calibration: What stages really cost.
            workers: The fleet.
            costs: What the router knows of stages.
            on_span: Told of stages: worker, stage, start, end, the request's number.
        """
        self._env = env
        self._truth = calibration
        self._known = costs
        self._clock = _Clock(env)
        self._workers = {one.info.name: one for one in workers}
        self._policy = make_policy(settings)
        self._sampling = Sampling(settings.max_candidates)
        self._texts = Arrivals()
        self._on_span = on_span
        self.fleet = Fleet(settings, self._clock)
        self.record = Record()
        self.open_s = 0.0
        self.changed_s = 0.0
        self._num_open = 0
        for worker in workers:
            self.fleet.add(worker.info.name, cast("Worker", worker)).mark_ready()

    def serve(self, request: Request) -> Process:
        """One request from its arrival to its last token."""
        self._count_open(1)
        if not request.pictures:
            self._texts.see(self._env.now)
        yield self._env.timeout(self._truth.request.at(1))
        job = self._job(request)
        members = self._sampling.members(self.fleet, job)
        plan = self._policy.plan(job, self.fleet.view(self._known, self._texts.per_s(self._env.now), members))
        if plan.groups:
            pictures = {one.identity: one for one in request.pictures}
            calls = [self._encode(group, pictures, request) for group in plan.groups]
            if len(calls) == 1:
                yield from calls[0]
            else:
                yield self._env.all_of([self._env.process(call) for call in calls])
        first_s = yield from self._generate(request, plan, job)
        self.record.add(request.class_name, plan.path, request.at_s, first_s, self._env.now, request.output_tokens)
        self._count_open(-1)

    def _job(self, request: Request) -> Job:
        positions: dict[str, tuple[int, ...]] = {}
        for position, picture in enumerate(request.pictures):
            positions[picture.identity] = (*positions.get(picture.identity, ()), position)
        pixels = {picture.identity: picture.num_pixels for picture in request.pictures}
        index = self.fleet.embeddings
        items = [
            ItemView(
                identity=identity,
                positions=places,
                num_pixels=pixels[identity],
                has_handle=index.handle(identity) is not None,
                holders=index.holders(identity),
            )
            for identity, places in positions.items()
        ]
        return Job(
            items=tuple(items),
            num_chars=CHARS_PER_TOKEN * request.text_tokens,
            max_output_tokens=request.output_tokens,
            known=self.fleet.prefixes.longest(_prefixes(request)),
        )

    def _encode(self, group: EncodeGroup, pictures: dict[str, Picture], request: Request) -> Process:
        chosen = [pictures[identity] for identity in group.identities]
        member, start_s = self.fleet.get(group.worker), self._env.now
        work_s = sum(self._known.encode_s(group.worker, one.num_pixels) for one in chosen)
        with member.encoding.work(work_s):
            yield self._workers[group.worker].encode(chosen, str(request.number))
        self._note(group.worker, "encode", start_s, request)
        for picture in chosen:
            self.fleet.embeddings.offered(picture.identity, _ON_OFFER, group.worker)
        yield self._env.timeout(self._truth.transfer.at(sum(one.num_tokens for one in chosen)))

    def _generate(self, request: Request, plan: Plan, job: Job) -> Generator[simpy.Event, Any, float]:
        """Prefill and decode; returns when the first token was there."""
        local = [one for one in request.pictures if plan.fates[one.identity] == "local"]
        local = list({one.identity: one for one in local}.values())
        known = [identity for identity, fate in plan.fates.items() if fate == "prefix"]
        num_known = sum(one.num_tokens for one in request.pictures if one.identity in known)
        num_known += job.known_chars(plan.prefill) // CHARS_PER_TOKEN
        worker, member = self._workers[plan.prefill], self.fleet.get(plan.prefill)
        num_tokens = uncovered_tokens(job, self._known, plan.prefill, known)
        start_s = self._env.now
        with ExitStack() as load:
            load.enter_context(member.prefilling.work(self._known.prefill_s(plan.prefill, num_tokens)))
            if local:
                encode_s = sum(self._known.encode_s(plan.prefill, one.num_pixels) for one in local)
                load.enter_context(member.encoding.work(encode_s))
                yield worker.encode(local, str(request.number))
                self._note(plan.prefill, "encode", start_s, request)
            elif self._truth.text_waits_for_media and "encode" in worker.info.roles:
                yield worker.pass_media_queue()
            start_s = self._env.now
            num_here = request.output_tokens if plan.decode is None else 1
            generation = worker.generate(request, num_here, num_known)
            yield generation.first
        first_s: float = self._env.now
        self._note(plan.prefill, "prefill", start_s, request)
        self._remember(request, plan.prefill)
        decoding = plan.prefill if plan.decode is None else plan.decode
        if plan.decode is not None:
            yield self._env.timeout(self._truth.kv_transfer.at(request.prompt_tokens))
            generation = self._workers[plan.decode].generate(request, request.output_tokens, request.prompt_tokens)
            yield generation.first
            first_s = self._env.now
        with self.fleet.get(decoding).decoding():
            yield generation.done
        self._note(decoding, "decode", first_s, request)
        return first_s

    def _remember(self, request: Request, worker: str) -> None:
        self.fleet.prefixes.served(_prefixes(request), worker)
        for picture in request.pictures:
            self.fleet.embeddings.held(picture.identity, worker)

    def _count_open(self, change: int) -> None:
        self.open_s += self._num_open * (self._env.now - self.changed_s)
        self.changed_s = self._env.now
        self._num_open += change

    def _note(self, worker: str, stage: str, start_s: float, request: Request) -> None:
        if self._on_span is not None:
            self._on_span(worker, stage, start_s, self._env.now, request.number)


class _Clock:
    """The simulation's time, as routing asks for it."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env

    def now_s(self) -> float:
        return float(self._env.now)

    def unix_s(self) -> float:
        return float(self._env.now)


def _prefixes(request: Request) -> list[Prefix]:
    """Starts of the prompt that others may have in common with it, the shortest first."""
    if request.prefix:
        return [Prefix(request.prefix, 0, tuple(one.identity for one in request.pictures))]
    if request.pictures:
        return []
    num_chars = CHARS_PER_TOKEN * request.block_tokens
    return [Prefix(name, (place + 1) * num_chars, ()) for place, name in enumerate(request.blocks)]
