"""One generation after the other: plan, see what is covered, get the tensors, submit, pass on events, give all back."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from chiasm.engines.embedded.engine import EmbeddedEngine
from chiasm.engines.embedded.language import LanguageStages
from chiasm.engines.embedded.planner import PlannedRequest
from chiasm.engines.embedded.sequence import PromptTensors, Sequence
from chiasm.errors import UnsupportedMediaError
from chiasm.media.item_errors import naming_item
from chiasm.media.prepare.base import ImagePlan, ImagePreparer
from chiasm.observability.receipt import StageClock
from chiasm.protocol.generation import GenerateEvent, GenerateRequest, RequestFinished, Usage
from chiasm.protocol.kv import KvHandle
from chiasm.protocol.media import MediaItem
from chiasm.workers.coverage import Coverage, covered_by_kv, pin_prefix
from chiasm.workers.deadline import until
from chiasm.workers.embeddings import EmbeddingSource, HeldEmbeddings
from chiasm.workers.handover import KvExchange
from chiasm.workers.mailbox import Mailbox

_PLANNER_THREADS = 2


@dataclass
class _Run:
    """One request under way, with all that must be given back when it ends."""

    request: GenerateRequest
    mailbox: Mailbox
    tensors: PromptTensors
    clock: StageClock = field(default_factory=StageClock)
    embeddings: HeldEmbeddings = field(default_factory=lambda: HeldEmbeddings({}, 0))
    planned: PlannedRequest | None = None
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
        self._planners = ThreadPoolExecutor(_PLANNER_THREADS, thread_name_prefix="chiasm-plan")
        self.num_open = 0
        self.num_covered_items = 0

    async def events(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent, None]:
        """See `Worker.generate`."""
        deadline_s = asyncio.get_running_loop().time() + request.timeout_s
        num_choices = request.sampling.n
        tensors = PromptTensors(num_choices, is_kv_wanted=request.hands_over_kv)
        run = _Run(request, Mailbox(num_choices, stream=request.stream), tensors)
        with self._opened(run):
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
        self._planners.shutdown(wait=False, cancel_futures=True)

    async def _submit(self, run: _Run) -> None:
        """Plan the prompt, get its tensors, hand the sequences to the engine."""
        loop = asyncio.get_running_loop()
        run.planned = planned = await self._plan(run)
        coverage = await self._cover(run, planned)
        needed = range(coverage.first_image, len(planned.items))
        run.embeddings = await self._embeddings.hold_all(
            [(planned.items[image], run.request.items[planned.items[image]]) for image in needed], run.clock
        )
        run.sequences = await loop.run_in_executor(self._planners, self._sequences, run, planned, needed)
        self._engine.loop.submit(run.sequences)

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

    def _sequences(self, run: _Run, planned: PlannedRequest, needed: range) -> list[Sequence]:
        """Check and join the embeddings, compile the grammar. Blocks."""
        prompt, tensors = planned.prompt, run.tensors
        if needed:
            handles = [run.embeddings.handles[span.key] for span in prompt.media[needed.start :]]
            tensors.embeddings = self._language.embeddings(prompt, handles)
            tensors.first_row = prompt.num_embedding_rows(prompt.images[needed.start].offset)
        return self._language.sequences(planned, tensors, [run.mailbox] * run.request.sampling.n)

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
            if not run.mailbox.is_finished:
                self._engine.loop.cancel(run.sequences)
            run.tensors.close()  # after the cancellation, which the engine's thread sees first
            self._embeddings.release(run.embeddings.handles.values())


def _image_plan(preparer: ImagePreparer, index: int, item: MediaItem) -> ImagePlan:
    with naming_item(index):
        return preparer.plan(item.width, item.height)


def _mark_first(run: _Run) -> None:
    """Spans up to the first token, once the first choice has one."""
    first, clock = run.sequences[0], run.clock
    if first.first_token_s and not any(span.stage == "prefill" for span in clock.spans):
        clock.add("prefill_queue", first.submitted_s - clock.start, first.admitted_s - clock.start)
        clock.add("prefill", first.admitted_s - clock.start, first.first_token_s - clock.start)
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
        num_cached_embeddings=run.embeddings.num_cached,
    )
    return RequestFinished(usage, tuple(run.clock.spans), kv)
