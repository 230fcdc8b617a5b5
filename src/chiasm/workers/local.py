"""A worker in this process around the embedded engine, holding all three roles."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from chiasm.connectors.local import LocalConnector
from chiasm.engines.embedded.engine import EmbeddedEngine, PlannedRequest, Progress
from chiasm.engines.embedded.sequence import Sequence
from chiasm.errors import DeadlineExceededError, UnsupportedMediaError
from chiasm.media.decoding import PictureDecoder
from chiasm.media.prepare.base import ImagePreparer
from chiasm.observability.receipt import StageClock
from chiasm.protocol.generation import GenerateEvent, GenerateRequest, RequestFinished, Usage
from chiasm.protocol.media import EmbeddingHandle
from chiasm.protocol.worker import EncodeRequest, EncodeResponse, WorkerInfo, WorkerStats
from chiasm.settings import EngineSettings, MediaSettings
from chiasm.workers.embeddings import EmbeddingSource
from chiasm.workers.mailbox import Mailbox

_PLANNER_THREADS = 2


@dataclass
class _Run:
    """One request under way, with all that must be given back when it ends."""

    request: GenerateRequest
    deadline_s: float
    mailbox: Mailbox
    clock: StageClock = field(default_factory=StageClock)
    planned: PlannedRequest | None = None
    handles: dict[str, EmbeddingHandle] = field(default_factory=dict)
    sequences: list[Sequence] = field(default_factory=list)
    num_cached_embeddings: int = 0


class LocalWorker:
    """Implements `chiasm.protocol.worker.Worker`. Made on any thread, used on one event loop."""

    def __init__(
        self, engine: EmbeddedEngine, connector: LocalConnector, decoder: PictureDecoder, info: WorkerInfo
    ) -> None:
        self._engine = engine
        self._connector = connector
        self._decoder = decoder
        self._embeddings = EmbeddingSource(engine, connector, decoder)
        self._planners = ThreadPoolExecutor(_PLANNER_THREADS, thread_name_prefix="chiasm-plan")
        self._info = info
        self._num_open = 0

    @classmethod
    def start(
        cls, directory: Path, name: str, engine: EngineSettings, media: MediaSettings, progress: Progress
    ) -> "LocalWorker":
        """Load a model; blocks for seconds. Raises `EngineStartError`."""
        connector = LocalConnector(
            capacity_bytes=engine.embedding_cache_bytes, max_held_bytes=engine.max_held_embedding_bytes
        )
        embedded = EmbeddedEngine(engine, directory, connector, progress)
        info = WorkerInfo(
            model=name,
            family=embedded.family.name,
            roles=("encode", "prefill", "decode"),
            dtype=engine.dtype,
            device="cpu",
            max_model_tokens=embedded.max_tokens,
            takes_images=embedded.preparer is not None,
            model_revision=embedded.model_revision,
            processor_revision=embedded.preparer.revision if embedded.preparer else "",
            started_at_unix_s=time.time(),
        )
        return cls(embedded, connector, PictureDecoder(media), info)

    @property
    def info(self) -> WorkerInfo:
        """See `Worker`."""
        return self._info

    @property
    def preparer(self) -> ImagePreparer | None:
        """How pictures are prepared; None for a text-only model."""
        return self._engine.preparer

    def stats(self) -> WorkerStats:
        """See `Worker`."""
        core, encoder = self._engine.core, self._engine.encoder
        return WorkerStats(
            is_healthy=self._engine.loop.is_alive,
            num_running=core.scheduler.num_running,
            num_waiting=core.scheduler.num_waiting,
            num_free_slots=core.scheduler.slots.num_free,
            num_cached_blocks=len(core.pool),
            num_cached_embeddings=self._connector.num_stored,
            num_held_embeddings=self._connector.num_held,
            num_open_requests=self._num_open,
            totals={
                **core.totals,
                "encoded_items": encoder.num_encoded if encoder else 0,
                "embedding_cache_hits": self._embeddings.num_hits,
                "decoded_items": self._decoder.num_decoded,
            },
        )

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent, None]:
        """See `Worker`."""
        deadline_s = asyncio.get_running_loop().time() + request.timeout_s
        run = _Run(request, deadline_s, Mailbox(request.sampling.n, stream=request.stream))
        with self._opened(run):
            async with _until(deadline_s):
                await self._submit(run)
            while not run.mailbox.is_finished or run.mailbox.has_events:
                async with _until(deadline_s):
                    events = await run.mailbox.get()
                self._mark_first(run)
                for event in events:
                    yield event
            yield self._finished(run)

    async def encode(self, request: EncodeRequest) -> EncodeResponse:
        """See `Worker`. The embeddings stay in the cache, unheld, until room is needed."""
        async with _until(asyncio.get_running_loop().time() + request.timeout_s):
            handles = await self._embeddings.hold_all(request.items, StageClock())
        for key in handles:
            self._connector.release(key)
        return EncodeResponse(
            handles=tuple(handles[self._engine.embedding_key(item.identity)] for item in request.items)
        )

    async def aclose(self) -> None:
        """See `Worker`."""
        await asyncio.to_thread(self._engine.loop.stop)
        self._planners.shutdown(wait=False, cancel_futures=True)
        self._decoder.close()

    async def _submit(self, run: _Run) -> None:
        """Plan the prompt, get the embeddings, hand the sequences to the engine."""
        loop = asyncio.get_running_loop()
        request, preparer = run.request, self._engine.preparer
        if request.items and preparer is None:
            raise UnsupportedMediaError("This model takes no pictures", item=0, hint="Serve a vision-language model.")
        plans = [preparer.plan(item.width, item.height) for item in request.items] if preparer else []
        with run.clock.stage("prompt"):
            run.planned = await loop.run_in_executor(self._planners, self._engine.plan, request, plans)
        hits = self._embeddings.num_hits
        run.handles = await self._embeddings.hold_all(request.items, run.clock)
        run.num_cached_embeddings = self._embeddings.num_hits - hits
        handles = [run.handles[key] for key in run.planned.item_keys]
        sinks = [run.mailbox] * request.sampling.n
        run.sequences = await loop.run_in_executor(self._planners, self._engine.sequences, run.planned, handles, sinks)
        self._engine.loop.submit(run.sequences)

    @contextmanager
    def _opened(self, run: _Run) -> Iterator[None]:
        self._num_open += 1
        try:
            yield
        finally:
            self._num_open -= 1
            if not run.mailbox.is_finished:
                self._engine.loop.cancel(run.sequences)
            for key in run.handles:
                self._connector.release(key)

    def _mark_first(self, run: _Run) -> None:
        """Spans up to the first token, once the first choice has one."""
        first, clock = run.sequences[0], run.clock
        if first.first_token_s and not any(span.stage == "prefill" for span in clock.spans):
            clock.add("prefill_queue", first.submitted_s - clock.start, first.admitted_s - clock.start)
            clock.add("prefill", first.admitted_s - clock.start, first.first_token_s - clock.start)
            if run.request.stream:
                clock.add("first_token", first.first_token_s - clock.start, clock.now_s())

    def _finished(self, run: _Run) -> RequestFinished:
        assert run.planned is not None
        prompt = run.planned.prompt
        usage = Usage(
            num_prompt_tokens=prompt.num_tokens,
            num_output_tokens=sum(len(sequence.output_ids) for sequence in run.sequences),
            num_cached_tokens=run.sequences[0].num_cached_tokens,
            num_visual_tokens=int(prompt.is_embedding_row.sum()),
            num_cached_embeddings=run.num_cached_embeddings,
        )
        return RequestFinished(usage, tuple(run.clock.spans))


@asynccontextmanager
async def _until(deadline_s: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout_at(deadline_s):
            yield
    except TimeoutError as expired:
        raise DeadlineExceededError("The request's deadline passed", hint="Raise timeout_s or send less.") from expired
