"""The way of one request through the fleet: plan, encode, prefill, decode, and again where something failed."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from chiasm.errors import (
    ChiasmError,
    EngineDeadError,
    HandleExpiredError,
    QuarantinedError,
    ShuttingDownError,
    TransferError,
)
from chiasm.observability.receipt import Route, Span
from chiasm.protocol.generation import GenerateEvent, GenerateRequest, RequestFinished, RouteTaken
from chiasm.routing.coverage.prefixes import prefixes_of
from chiasm.routing.fan_out import FanOut
from chiasm.routing.late import Late
from chiasm.routing.overlap import parts_of, saved_s
from chiasm.routing.parts import RouterParts
from chiasm.routing.passage import Passage
from chiasm.routing.pictures import Pictures
from chiasm.routing.plan import Plan
from chiasm.routing.prediction import expected_s
from chiasm.routing.quarantine import Case
from chiasm.routing.recovery import Ladder, StageError
from chiasm.routing.view import Job

_DEFAULT_OUTPUT_TOKENS = 256


class Journey:
    """Serves one generation. `events` may be called once; closing it ends all that is under way."""

    def __init__(self, parts: RouterParts, request: GenerateRequest) -> None:
        self._parts = parts
        self._request = request
        self._start_s = parts.clock.now_s()
        self._case = Case(parts.quarantine, request.items, request.prompt)
        self._ladder = Ladder(parts.settings, parts.clock, request.timeout_s, self._case)
        self._prefixes = prefixes_of(request)
        self._pictures = Pictures(request.items, parts.fleet.embeddings, request.cache_salt)
        self._fan_out = FanOut(parts, request.request_id, self._pictures, self._ladder)
        self._passage = Passage(parts, request, self._pictures, self._ladder, self._start_s)
        self._starts = {prefix.items[-1]: prefix for prefix in reversed(self._prefixes) if prefix.items}
        self._expected_s: dict[str, float] = {}
        self._is_committed = False
        self._is_finished = False

    async def events(self) -> AsyncGenerator[GenerateEvent, None]:
        """The request's events. A way that fails before its first token leaves no trace but in the route."""
        plan: Plan | None = None
        if not self._request.items:
            self._parts.texts.see(self._start_s)
        try:
            with self._parts.opened():
                self._case.check()
                while not self._is_finished:
                    job = self._job()
                    try:
                        plan = self._plan(job)
                        self._expected_s = expected_s(job, self._parts.costs.costs(), plan)
                    except (EngineDeadError, HandleExpiredError, ShuttingDownError) as error:
                        await self._until_somebody_returns(error)
                        continue
                    yield RouteTaken(self._route(plan))
                    late = self._late(plan, job)
                    if plan.groups and late is None and not await self._fan_out.run(plan.groups):
                        continue
                    async with aclosing(self._answer(plan, job, late)) as events:
                        async for event in events:
                            yield event
        except ChiasmError as error:
            self._parts.counts["requests_quarantined"] += isinstance(error, QuarantinedError)
            if plan is not None:
                yield RouteTaken(self._route(plan))
            raise
        finally:
            failed = sum([attempt.outcome != "ok" for attempt in self._ladder.attempts])
            self._parts.counts["failed_attempts"] += failed

    def _late(self, plan: Plan, job: Job) -> Late | None:
        """The pictures that are to follow the prompt, when it is not to wait for them. Only a first try is made so."""
        if not plan.groups or plan.prefill not in job.may_overlap or self._ladder.has_failures:
            return None
        is_always = self._parts.settings.overlap == "always"
        if not is_always and not saved_s(job, self._parts.costs.costs(), plan.prefill, plan.groups):
            return None
        return Late(self._fan_out, self._pictures, [part for group in plan.groups for part in parts_of(group)])

    async def _answer(self, plan: Plan, job: Job, late: Late | None) -> AsyncGenerator[GenerateEvent, None]:
        """One try at prefill and decode; ends without `RequestFinished` when there is to be another."""
        try:
            async with aclosing(self._passage.events(plan, job, late)) as events:
                async for event in events:
                    if not self._is_committed:
                        self._commit(plan)
                        if late is not None:
                            late.end()
                    if isinstance(event, RequestFinished):
                        self._is_finished = True
                        self._case.served()
                        yield RouteTaken(self._route(plan))
                        event = self._with_spans(event)
                    yield event
        except StageError as failure:
            was_ended_by_encoder = late is not None and late.has_failed
            if late is not None:
                await late.outcome()
            if not was_ended_by_encoder:
                self._step_down(failure)
        finally:
            if late is not None:
                late.end()

    def _plan(self, job: Job) -> Plan:
        """A way that avoids what failed. Raises what to tell the caller when there is none."""
        view = self._parts.view(job)
        self._ladder.check_time()
        try:
            return self._parts.policy.plan(job, view)
        except (EngineDeadError, HandleExpiredError) as error:
            self._ladder.nobody_left(error)
            again = msgspec.structs.replace(
                job,
                failed=frozenset(self._ladder.failed),
                failed_encoders=frozenset(self._ladder.failed_encoders),
            )
            return self._parts.policy.plan(again, view)

    async def _until_somebody_returns(self, error: ChiasmError) -> None:
        """Wait for a worker that may take the request. Raises `error` when none comes, or waiting would not help."""
        start_s, until_s = self._parts.clock.now_s(), self._ladder.wait_until_s
        if until_s <= start_s:
            raise error
        self._parts.counts["waits_for_worker"] += 1
        worker = await self._parts.fleet.absence.returned(until_s)
        self._passage.spans.append(Span("prefill_queue", start_s, self._parts.clock.now_s()))
        if worker is None:
            raise error
        self._ladder.came_back(worker)

    def _job(self) -> Job:
        return Job(
            items=self._pictures.views(),
            num_chars=self._prefixes[-1].num_chars if self._prefixes else 0,
            num_choices=self._request.sampling.n,
            max_output_tokens=self._request.sampling.max_tokens or _DEFAULT_OUTPUT_TOKENS,
            known=self._parts.fleet.prefixes.longest(self._prefixes),
            starts=self._starts,
            may_overlap=self._may_overlap(),
            failed=frozenset(self._ladder.failed),
            failed_encoders=frozenset(self._ladder.failed_encoders),
            local_only=frozenset(self._ladder.local_only),
        )

    def _may_overlap(self) -> frozenset[str]:
        """Workers that compute a prompt while embeddings are on their way."""
        if self._parts.settings.overlap == "never" or not self._request.items:
            return frozenset()
        able = [one.name for one in self._parts.fleet.members if one.info.takes_late_embeddings]
        return frozenset(name for name in able if self._passage.forwards_metadata(name))

    def _route(self, plan: Plan) -> Route:
        return Route(
            path=plan.path,
            policy=plan.policy,
            reason=plan.reason,
            attempts=tuple(self._ladder.attempts),
            expected_s=self._expected_s,
        )

    def _step_down(self, failure: StageError) -> None:
        """Put a failed try on the ladder. Raises its error where there is no step left."""
        if self._is_committed:
            self._ladder.noted(failure)
            raise failure.error
        if isinstance(failure.error, TransferError) and failure.pictures:
            producers = self._pictures.forget(failure.pictures)
            self._ladder.embedding_failed(failure, producers)
            if not all(self._pictures.has_pixels(identity) for identity in failure.pictures):
                raise failure.error
        else:
            self._ladder.generate_failed(failure)

    def _commit(self, plan: Plan) -> None:
        """There is a first token: from here on no other way is taken, and what is known now is remembered."""
        self._is_committed = True
        fleet, counts = self._parts.fleet, self._parts.counts
        fleet.prefixes.served(self._prefixes, plan.prefill, self._start_s)
        counts[f"routes_{plan.path.replace('-', '_')}"] += 1
        for identity, positions in self._pictures.positions.items():
            fleet.embeddings.held(identity, plan.prefill, self._request.cache_salt, self._start_s)
            self._parts.encode.renew(self._pictures.item(identity), self._request.cache_salt)
            counts["encodes_avoided_repeat"] += len(positions) - 1
            counts[self._counter_of(identity, plan)] += 1

    def _counter_of(self, identity: str, plan: Plan) -> str:
        """Which counter a picture goes to: each goes to exactly one."""
        fate = plan.fates[identity]
        if fate == "local":
            return "encodes_local"
        if identity in self._fan_out.made:
            return "encodes_sent"
        if identity in self._fan_out.joined:
            return "encodes_avoided_in_flight"
        if fate == "encode":  # it was on its way, and the worker had what it was for
            return "encodes_avoided_prefix"
        return f"encodes_avoided_{fate}"

    def _with_spans(self, event: RequestFinished) -> RequestFinished:
        spans = [*self._fan_out.spans, *self._passage.spans]
        return msgspec.structs.replace(event, spans=tuple(span.shifted(-self._start_s) for span in spans))
