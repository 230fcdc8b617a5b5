"""One request's calls for prefill and decode: what is sent, how long it may take, and what it cost."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import ExitStack, aclosing
from functools import partial

import msgspec

from chiasm.errors import ChiasmError
from chiasm.observability.receipt import Span
from chiasm.protocol.generation import GenerateEvent, GenerateRequest, RequestFinished, Usage
from chiasm.routing.costs.spans import gaps
from chiasm.routing.late import Late
from chiasm.routing.parts import RouterParts
from chiasm.routing.pictures import Pictures
from chiasm.routing.plan import Plan
from chiasm.routing.prediction import uncovered_tokens
from chiasm.routing.recovery import Ladder, StageError
from chiasm.routing.stages.generation import Begin, Expected
from chiasm.routing.view import Job


class Passage:
    """Makes the calls of a plan. May be used for several plans, one after the other.

    Attributes:
        spans: What the calls came to, on the router's clock.
    """

    def __init__(
        self, parts: RouterParts, request: GenerateRequest, pictures: Pictures, ladder: Ladder, begun_s: float
    ) -> None:
        self._parts = parts
        self._request = request
        self._pictures = pictures
        self._ladder = ladder
        self._num_calls = 0
        self._begun_s = begun_s
        self.spans: list[Span] = []

    async def events(self, plan: Plan, job: Job, late: Late | None) -> AsyncGenerator[GenerateEvent, None]:
        """The answer of the worker that decodes. Raises `StageError`."""
        as_metadata = self.forwards_metadata(plan.prefill) and not self._would_mix(plan)
        following = late.identities if late is not None else ()
        items, sent = self._pictures.sources(plan.fates, as_metadata=as_metadata, late=following)
        request = msgspec.structs.replace(self._request, items=items)
        expected = self._expected(plan, job)
        self.spans.append(Span("route", self._begun_s, self._parts.clock.now_s()))
        if plan.decode is None:
            prefilled, stage, worker = None, "prefill", plan.prefill
        else:
            prefilled = await self._prefill(plan.prefill, request, expected, sent, late)
            items, _ = self._pictures.sources(plan.fates, as_metadata=as_metadata)
            request = msgspec.structs.replace(request, items=items, kv=prefilled.kv)
            stage, worker, expected, sent, late = "decode", plan.decode, Expected(prefill_s=0.0), {}, None
        start_s, first_s = self._parts.clock.now_s(), None
        with self._failing(stage, worker, sent, late), self._withdrawing(plan, prefilled) as unless_taken:
            member, call = self._parts.fleet.get(worker), self._call(request)
            limit_s, begin = self._limited(self._first_limit_s(stage, is_stream=request.stream), late)
            async with aclosing(self._parts.generate.stream(member, call, expected, limit_s, begin)) as events:
                async for event in events:
                    if first_s is None:
                        first_s = self._parts.clock.now_s()
                        unless_taken.pop_all()
                    if isinstance(event, RequestFinished):
                        self._ladder.passed(stage, worker)
                        self._note_answer(event, stage, (start_s, first_s), late)
                        event = RequestFinished(merged_usage(prefilled, event))
                    yield event

    def _withdrawing(self, plan: Plan, prefilled: RequestFinished | None) -> ExitStack:
        """Has keys and values withdrawn at its end: without a first token nobody takes them any more."""
        stack, withdraw = ExitStack(), self._parts.generate.withdrawals.start
        if prefilled is not None and prefilled.kv is not None:
            for member in (one for one in self._parts.fleet.members if one.name == plan.prefill):
                stack.callback(withdraw, member, prefilled.kv)
        return stack

    async def _prefill(
        self, worker: str, request: GenerateRequest, expected: Expected, sent: Mapping[str, int], late: Late | None
    ) -> RequestFinished:
        start_s = self._parts.clock.now_s()
        with self._failing("prefill", worker, sent, late):
            member, call = self._parts.fleet.get(worker), self._call(request)
            limit_s, begin = self._limited(self._ladder.share_s(max(self._num_others("prefill"), 1)), late)
            finished = await self._parts.generate.prefill(member, call, expected, limit_s, begin)
        spans = [span.shifted(start_s) for span in finished.spans]
        known = [*spans, *(late.spans if late is not None else ())]
        self.spans += [*spans, *gaps(known, start_s, self._parts.clock.now_s(), "kv_transfer")]
        self._ladder.passed("prefill", worker)
        return finished

    def _limited(self, limit_s: float, late: Late | None) -> tuple[float, Begin | None]:
        """How long a call may take, and what begins with it. The limit counts from when nothing is late any more."""
        if late is None:
            return limit_s, None
        return self._ladder.remaining_s, partial(late.begin, limit_s=limit_s)

    def forwards_metadata(self, worker: str) -> bool:
        """Whether a worker gets embeddings' handles; raw media are only for those who can encode them again."""
        if self._parts.settings.forward == "metadata":
            return True
        return not any("encode" in one.info.roles for one in self._parts.fleet.members if one.name == worker)

    def _would_mix(self, plan: Plan) -> bool:
        """Whether the pictures must all go as they are, since some must and the worker takes only one or the other."""
        infos = [one.info for one in self._parts.fleet.members if one.name == plan.prefill]
        return not all(info.mixes_sources for info in infos) and self._pictures.are_mixed(plan.fates)

    def _call(self, request: GenerateRequest) -> GenerateRequest:
        """The request under an id of its own: no worker is to mistake a second try for the first."""
        self._num_calls += 1
        call_id = request.request_id if self._num_calls == 1 else f"{request.request_id}.g{self._num_calls}"
        return msgspec.structs.replace(request, request_id=call_id, timeout_s=self._ladder.remaining_s)

    def _first_limit_s(self, stage: str, *, is_stream: bool) -> float:
        """How long the first event may take. What is not streamed may come at the end, whenever that is."""
        return self._ladder.share_s(self._num_others(stage)) if is_stream else self._ladder.remaining_s

    def _num_others(self, stage: str) -> int:
        workers = self._parts.fleet.with_role("prefill" if stage == "prefill" else "decode")
        return self._ladder.others_for_generate(len(workers))

    def _expected(self, plan: Plan, job: Job) -> Expected:
        costs, worker = self._parts.costs.costs(), plan.prefill
        local = [item.num_pixels for item in job.items if plan.fates[item.identity] == "local"]
        covered = {identity for identity, fate in plan.fates.items() if fate == "prefix"}
        return Expected(
            prefill_s=costs.prefill_s(worker, uncovered_tokens(job, costs, worker, covered)),
            num_chars=job.num_chars,
            encode_s=sum(costs.encode_s(worker, one) for one in local),
            num_pictures=len(local),
            num_pixels=sum(local),
        )

    def _note_answer(
        self, finished: RequestFinished, stage: str, until_first: tuple[float, float], late: Late | None
    ) -> None:
        """Spans of the last call. What its worker does not account for is waiting before its work, delivery.

        Where pictures followed the prompt, it is what encoders do not account for either: their way to the worker.
        """
        start_s, first_s = until_first
        spans = [span.shifted(start_s) for span in finished.spans]
        waiting = "kv_transfer" if stage == "decode" else "prefill_queue" if late is None else "transfer"
        self.spans += spans
        known = [*spans, *(late.spans if late is not None else ())]
        for gap in gaps(known, start_s, first_s, waiting):
            is_delivery = gap.end_s == first_s and gap.start_s > start_s
            self.spans.append(Span("first_token", gap.start_s, gap.end_s) if is_delivery else gap)

    def _failing(self, stage: str, worker: str, sent: Mapping[str, int], late: Late | None) -> "_Failing":
        return _Failing(partial(self._failed, stage, worker, sent, late, self._parts.clock.now_s()))

    def _failed(
        self,
        stage: str,
        worker: str,
        sent: Mapping[str, int],
        late: Late | None,
        start_s: float,
        error: ChiasmError,
    ) -> StageError:
        if late is None or not late.has_failed:
            self.spans.append(Span("prefill_queue", start_s, self._parts.clock.now_s()))
            self._parts.fleet.blame(worker, error)
        return StageError(stage, worker, error, sent)


class _Failing:
    """A block whose errors become those of a stage. Not a generator: every request passes through it."""

    __slots__ = ("_failed",)

    def __init__(self, failed: Callable[[ChiasmError], StageError]) -> None:
        self._failed = failed

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ChiasmError):
            raise self._failed(error) from error


def merged_usage(prefilled: RequestFinished | None, decoded: RequestFinished) -> Usage:
    """The prompt as it was prefilled, the output as it was decoded."""
    if prefilled is None:
        return decoded.usage
    return msgspec.structs.replace(prefilled.usage, num_output_tokens=decoded.usage.num_output_tokens)
