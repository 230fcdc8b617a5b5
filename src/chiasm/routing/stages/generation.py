"""The prefill and decode stages: one call to one worker, with its waits bounded and its cost learned."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, aclosing, closing, nullcontext
from typing import Any, Protocol, cast, runtime_checkable

import msgspec

from chiasm.errors import EngineError
from chiasm.protocol.generation import GenerateEvent, GenerateRequest, RequestFinished, RouteTaken
from chiasm.protocol.worker import Worker
from chiasm.routing.clock import Clock
from chiasm.routing.costs.model import CostModel
from chiasm.routing.costs.spans import ENCODE_STAGES, busy_s
from chiasm.routing.member import Member
from chiasm.routing.patience import Patience
from chiasm.routing.stages.withdrawals import Withdrawals


@runtime_checkable
class Undivided(Protocol):
    """A worker that does not tell the encoding of pictures from the rest of a prompt's computation."""

    @property
    def counts_encoding_as_prefill(self) -> bool:
        """Whether it does not."""
        ...


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What a generation is expected to cost its worker: seconds of prefill, and of encoding on the way."""

    prefill_s: float
    num_chars: int = 0
    encode_s: float = 0.0
    num_pictures: int = 0
    num_pixels: int = 0


_NOTHING = nullcontext()
Begin = Callable[[Member, str, Patience], None]
"""Begins what goes with a call: on whom, the call's id, and the patience of its first wait."""


class GenerateStage:
    """Calls workers for prefill, for decode, or for both."""

    def __init__(self, costs: CostModel, clock: Clock) -> None:
        self._costs = costs
        self._clock = clock
        self.withdrawals = Withdrawals()

    async def stream(
        self,
        member: Member,
        request: GenerateRequest,
        expected: Expected,
        first_limit_s: float,
        begin: Begin | None = None,
    ) -> AsyncGenerator[GenerateEvent, None]:
        """The worker's events, the first of them within `first_limit_s`. Ends with `RequestFinished` or raises.

        What is to begin with the call gets a moment before it.
        """
        end_s = self._clock.now_s() + request.timeout_s
        async with aclosing(cast("Any", member.worker.generate(request))) as events:
            with closing(member.patience(first_limit_s)) as patience:
                with member.prefilling.work(expected.prefill_s), _encoding(member, expected):
                    if begin is not None:
                        begin(member, request.request_id, patience)
                        await asyncio.sleep(0)
                    event = await _first(events, patience)
                first_s = self._clock.now_s()
                patience.restart(end_s - first_s)
                with member.decoding():
                    while event is not None:
                        if isinstance(event, RequestFinished):
                            self._learn(member, request, event, expected, self._clock.now_s() - first_s)
                            yield event
                            return
                        yield event
                        with patience:
                            event = await anext(events, None)
        raise EngineError(f"Worker '{member.name}' ended its answer without a result")

    async def prefill(
        self,
        member: Member,
        request: GenerateRequest,
        expected: Expected,
        limit_s: float,
        begin: Begin | None = None,
    ) -> RequestFinished:
        """Have a prompt computed and kept for another worker."""
        sampling = msgspec.structs.replace(
            request.sampling, max_tokens=1, min_tokens=0, n=1, json_schema=None, num_top_logprobs=None
        )
        asked = msgspec.structs.replace(request, sampling=sampling, stream=False, hands_over_kv=True, timeout_s=limit_s)
        finished: RequestFinished | None = None
        async with aclosing(self.stream(member, asked, expected, limit_s, begin)) as events:
            async for event in events:
                if isinstance(event, RequestFinished):
                    finished = event
        assert finished is not None, "a stream ends with a result or raises"
        if finished.kv is None:
            raise EngineError(f"Worker '{member.name}' prefilled without handing over keys and values")
        return finished

    def _learn(
        self, member: Member, request: GenerateRequest, finished: RequestFinished, expected: Expected, decode_s: float
    ) -> None:
        usage = finished.usage
        prefill_s = busy_s(finished.spans, ("prefill",))
        encode_s = busy_s(finished.spans, ENCODE_STAGES)
        num_tokens = usage.num_prompt_tokens - usage.num_cached_tokens
        is_mixed = bool(expected.num_pictures or encode_s) and _counts_encoding_as_prefill(member.worker)
        if is_mixed and expected.num_pictures:  # what is more than a prompt without pictures would take
            encode_s = max(prefill_s - self._costs.costs().prefill_s(member.name, num_tokens), 0.0)
        if prefill_s and request.kv is None:
            if not (is_mixed and encode_s):
                self._costs.see_prefill(member.name, num_tokens, prefill_s)
            if not request.items:
                self._costs.see_text_prefill(prefill_s)
            self._costs.see_text(expected.num_chars, usage.num_prompt_tokens - usage.num_visual_tokens)
        if encode_s and expected.num_pictures:
            now_s = self._clock.now_s()
            self._costs.see_encode(member.name, expected.num_pictures, expected.num_pixels, encode_s, now_s)
        if take_s := busy_s(finished.spans, ("transfer",)):
            self._costs.see_take(take_s)
        if not request.hands_over_kv:
            self._costs.see_output(usage.num_output_tokens)
        if request.stream and usage.num_output_tokens > 1:
            self._costs.see_step(member.num_decoding, decode_s / (usage.num_output_tokens - 1))


def _encoding(member: Member, expected: Expected) -> AbstractContextManager[None]:
    return member.encoding.work(expected.encode_s) if expected.num_pictures else _NOTHING


def _counts_encoding_as_prefill(worker: Worker) -> bool:
    return isinstance(worker, Undivided) and worker.counts_encoding_as_prefill


async def _first(events: AsyncGenerator[GenerateEvent, None], patience: Patience) -> GenerateEvent | None:
    """The first event that is more than a route of the worker's own; None when there is none."""
    while True:
        with patience:
            event = await anext(events, None)
        if not isinstance(event, RouteTaken):
            return event
