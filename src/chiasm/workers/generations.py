"""One generation after the other: plan, see what is covered, get the tensors, submit, pass on events, give all back.

A prompt is submitted as soon as enough of it can be computed; pictures that come later follow it into the engine.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from collections.abc import Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from chiasm.engines.embedded.adapters.store import AdapterLease
from chiasm.engines.embedded.engine import EmbeddedEngine
from chiasm.engines.embedded.language import LanguageStages
from chiasm.engines.embedded.planner import PlannedRequest
from chiasm.engines.embedded.rows import PictureRows
from chiasm.engines.embedded.sequence import PromptTensors, Sequence
from chiasm.errors import ChiasmError, EngineError, UnsupportedMediaError
from chiasm.media.item_errors import naming_item
from chiasm.media.prepare.base import ImagePlan, ImagePreparer
from chiasm.media.prepare.items import plan_of
from chiasm.observability.receipt import StageClock
from chiasm.protocol.generation import GenerateEvent, GenerateRequest, RequestFinished, Usage
from chiasm.protocol.kv import KvHandle
from chiasm.protocol.media import EmbeddingHandle, MediaItem
from chiasm.settings.slices import shorten_thread_slices
from chiasm.workers.coverage import Coverage, covered_by_kv, pin_prefix
from chiasm.workers.deadline import until
from chiasm.workers.embeddings import EmbeddingSource
from chiasm.workers.handover import KvExchange
from chiasm.workers.late import Expected, LateEmbeddings
from chiasm.workers.mailbox import Mailbox
from chiasm.workers.pictures import PromptPictures

_PLANNER_THREADS = 2
_MIN_TOKENS_AHEAD = 64
"""Computing fewer before the other pictures have come saves less than a step of its own costs."""


@dataclass
class _Run:
    """One request under way, with all that must be given back when it ends."""

    request: GenerateRequest
    mailbox: Mailbox
    tensors: PromptTensors
    late: Expected = field(default_factory=dict)
    clock: StageClock = field(default_factory=StageClock)
    planned: PlannedRequest | None = None
    first_image: int = 0
    pictures: PromptPictures | None = None
    lease: AdapterLease | None = None
    feeding: "asyncio.Task[None] | None" = None
    sequences: list[Sequence] = field(default_factory=list)


class Generations:
    """Runs requests on a language model. Belongs to one event loop."""

    def __init__(
        self, engine: EmbeddedEngine, language: LanguageStages, embeddings: EmbeddingSource, kv: KvExchange
    ) -> None:
        self._engine = engine
        self._language = language
        self._embeddings = embeddings
        self._kv = kv
        self._planners = ThreadPoolExecutor(
            _PLANNER_THREADS, "chiasm-plan", initializer=shorten_thread_slices, initargs=(engine.short_slice_s,)
        )
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="chiasm-adapter")
        self.late = LateEmbeddings()
        self.num_open = 0
        self.num_covered_items = 0

    async def events(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent, None]:
        """See `Worker.generate`."""
        deadline_s = asyncio.get_running_loop().time() + request.timeout_s
        num_choices = request.sampling.n
        tensors = PromptTensors(num_choices, is_kv_wanted=request.hands_over_kv)
        run = _Run(request, Mailbox(num_choices, stream=request.stream), tensors)
        with self.late.expecting(request) as run.late, self._opened(run):
            async with until(deadline_s):
                await self._submit(run)
            while not run.mailbox.is_finished or run.mailbox.has_events:
                async with until(deadline_s):
                    events = await run.mailbox.get()
                _mark_first(run)
                for event in events:
                    yield event
            async with until(deadline_s):
                kv = await self._hand_over(run)
            yield _finished(run, kv)

    def close(self) -> None:
        """Drop what waits to be planned."""
        for pool in (self._planners, self._loader):
            pool.shutdown(wait=False, cancel_futures=True)

    async def _submit(self, run: _Run) -> None:
        """Plan the prompt, get enough of its tensors, hand the sequences to the engine."""
        await self._pin_adapter(run)
        run.planned = planned = await self._plan(run)
        coverage = await self._cover(run, planned)
        run.first_image = coverage.first_image
        places = [
            (span.key, item, run.request.items[item])
            for span, item in zip(planned.prompt.media, planned.items, strict=True)
        ]
        run.pictures = pictures = PromptPictures(
            self._embeddings, run.request, places[run.first_image :], run.late, run.clock
        )
        handles: list[EmbeddingHandle] = []
        while True:
            num_computable = planned.prompt.num_tokens - self._num_missing(run) - coverage.num_tokens
            if pictures.is_complete or num_computable >= _MIN_TOKENS_AHEAD:
                break
            handles += await pictures.more()
        loop = asyncio.get_running_loop()
        with run.clock.stage("prompt"):
            run.sequences = await loop.run_in_executor(self._planners, self._sequences, run, planned, handles)
        self._engine.loop.submit(run.sequences)
        if not pictures.is_complete:
            run.feeding = asyncio.create_task(self._feed(run, planned, pictures))

    async def _feed(self, run: _Run, planned: PlannedRequest, pictures: PromptPictures) -> None:
        """Hand over the other pictures as they come. A failure ends the request by its mailbox."""
        loop = asyncio.get_running_loop()
        try:
            while not pictures.is_complete:
                first = run.first_image + pictures.num_ready
                handles = await pictures.more()
                num_missing = self._num_missing(run)
                rows = await loop.run_in_executor(self._planners, self._rows, planned, first, handles)
                self._engine.loop.extend(run.sequences, rows, num_missing)
        except ChiasmError as error:
            run.mailbox.fail(error)
        except Exception:
            run.mailbox.fail(EngineError("A picture could not be handed to the engine"))
            raise

    async def _pin_adapter(self, run: _Run) -> None:
        """Have the request's adapter in memory until the request ends. Who needs none is not kept waiting."""
        ref, adapters = run.request.adapter, self._language.adapters
        if ref is None:
            return
        run.lease = adapters.try_acquire(ref)
        if run.lease is None:
            with run.clock.stage("adapter"):
                reading = asyncio.get_running_loop().run_in_executor(self._loader, adapters.acquire, ref)
                run.lease = await _not_lost(reading)
        run.tensors.adapter = run.lease.arranged

    async def _plan(self, run: _Run) -> PlannedRequest:
        request, preparer = run.request, self._engine.preparer
        if request.items and preparer is None:
            raise UnsupportedMediaError("This model takes no pictures", item=0, hint="Serve a vision-language model.")
        plans = [_image_plan(preparer, index, item) for index, item in enumerate(request.items)] if preparer else []
        with run.clock.stage("prompt"):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._planners, self._language.planner.plan, request, plans)

    async def _cover(self, run: _Run, planned: PlannedRequest) -> Coverage:
        """Find what need not be computed, and keep it until all choices have their slots."""
        handle, prompt = run.request.kv, planned.prompt
        if handle is None:
            coverage = pin_prefix(self._language.core.pool, prompt)
            keys = [span.key for span in prompt.media]
            self.num_covered_items += len({*keys} - {*keys[coverage.first_image :]})
        else:
            taken = await self._kv.take(handle, prompt, run.clock)
            run.tensors.kv = taken.tensor
            coverage = covered_by_kv(prompt, lambda: self._kv.release(taken.num_bytes))
        run.tensors.give_back = coverage.give_back
        return coverage

    def _sequences(self, run: _Run, planned: PlannedRequest, handles: Seq[EmbeddingHandle]) -> list[Sequence]:
        """Check the first embeddings, compile the grammar. Blocks."""
        prompt, tensors = planned.prompt, run.tensors
        if run.first_image < len(prompt.images):
            tensors.rows = PictureRows(prompt.num_embedding_rows(prompt.images[run.first_image].offset))
            tensors.rows.extend(self._rows(planned, run.first_image, handles))
        num_missing = prompt.num_missing_tokens(run.first_image + len(handles))
        sinks = [run.mailbox] * run.request.sampling.n
        return self._language.sequences(planned, tensors, num_missing, sinks)

    def _rows(self, planned: PlannedRequest, first: int, handles: Seq[EmbeddingHandle]) -> list[torch.Tensor]:
        """Check some of the prompt's embeddings, from a picture on. Blocks."""
        return [self._language.embedding(planned.prompt, first + place, one) for place, one in enumerate(handles)]

    def _num_missing(self, run: _Run) -> int:
        assert run.planned is not None and run.pictures is not None
        return run.planned.prompt.num_missing_tokens(run.first_image + run.pictures.num_ready)

    async def _hand_over(self, run: _Run) -> KvHandle | None:
        computed = run.tensors.computed_kv
        if computed is None or run.planned is None:
            return None
        return await self._kv.offer(run.planned.prompt, computed, run.clock)

    @contextmanager
    def _opened(self, run: _Run) -> Iterator[None]:
        self.num_open += 1
        try:
            yield
        finally:
            self.num_open -= 1
            if run.feeding is not None:
                run.feeding.cancel()
            if not run.mailbox.is_finished:
                self._engine.loop.cancel(run.sequences)
            run.tensors.close()  # after the cancellation, which the engine's thread sees first
            if run.pictures is not None:
                run.pictures.close()
            if run.lease is not None:
                run.lease.close()


async def _not_lost(reading: "asyncio.Future[AdapterLease]") -> AdapterLease:
    """What a thread brings; given back when nobody waits for it any more."""
    try:
        return await asyncio.shield(reading)
    except asyncio.CancelledError:
        reading.add_done_callback(_give_back)
        raise


def _give_back(reading: "asyncio.Future[AdapterLease]") -> None:
    if not reading.cancelled() and reading.exception() is None:
        reading.result().close()


def _image_plan(preparer: ImagePreparer, index: int, item: MediaItem) -> ImagePlan:
    with naming_item(index):
        return plan_of(preparer, item)


def _mark_first(run: _Run) -> None:
    """Spans up to the first token, once the first choice has one."""
    first, clock = run.sequences[0], run.clock
    if first.first_token_s and not any(span.stage == "prefill" for span in clock.spans):
        for start_s, end_s in first.ahead_s:
            clock.add("prefill", start_s - clock.start, end_s - clock.start)
        if first.admitted_s > first.completed_s:
            clock.add("prefill_queue", first.completed_s - clock.start, first.admitted_s - clock.start)
        start_s = max(first.admitted_s, first.completed_s)
        clock.add("prefill", start_s - clock.start, first.first_token_s - clock.start)
        if run.request.stream:
            clock.add("first_token", first.first_token_s - clock.start, clock.now_s())


def _finished(run: _Run, kv: KvHandle | None) -> RequestFinished:
    assert run.planned is not None
    prompt = run.planned.prompt
    usage = Usage(
        num_prompt_tokens=prompt.num_tokens,
        num_output_tokens=sum(len(sequence.output_ids) for sequence in run.sequences),
        num_cached_tokens=run.sequences[0].num_cached_tokens,
        num_visual_tokens=int(prompt.is_embedding_row.sum()),
        num_cached_embeddings=run.pictures.num_cached if run.pictures is not None else 0,
    )
    return RequestFinished(usage, tuple(run.clock.spans), kv)
