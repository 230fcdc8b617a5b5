"""The pooling worker of this process."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import torch

from chiasm.engines.embedded.revision import model_revision
from chiasm.engines.pooling.loop import PoolingLoop, PoolingWork, dead
from chiasm.engines.pooling.runner import PoolingRunner
from chiasm.engines.pooling.tokens import InputTokenizer
from chiasm.errors import (
    ChiasmError,
    InvalidRequestError,
    OverloadedError,
    UnsupportedFeatureError,
)
from chiasm.observability.memory import WorkerMemory
from chiasm.observability.receipt import StageClock
from chiasm.pooling.model_files import PoolingModel
from chiasm.protocol.generation import GenerateEvent, GenerateRequest
from chiasm.protocol.media import EmbeddingHandle, LateSource
from chiasm.protocol.pooling.work import ImageInput, PairInput, PoolingInfo, PoolRequest, PoolResponse
from chiasm.protocol.worker import EncodeRequest, EncodeResponse, WorkerInfo, WorkerStats
from chiasm.settings import EngineSettings, MediaSettings, PoolingSettings
from chiasm.workers.deadline import until
from chiasm.workers.memory import weigh
from chiasm.workers.pooling.facts import adjusted, pair_template, pooling_info
from chiasm.workers.pooling.pictures import PictureReader
from chiasm.workers.pooling.tasks import Array, Reading, read

_NUM_TOKENIZER_THREADS = 2


class LocalPoolingWorker:
    """Implements `chiasm.protocol.pooling.work.PoolingWorker`. Made on any thread, used on one event loop."""

    def __init__(
        self,
        model: PoolingModel,
        tokenizer: InputTokenizer,
        loop: PoolingLoop,
        info: WorkerInfo,
        facts: PoolingInfo,
        max_waiting_tokens: int,
        pictures: PictureReader | None = None,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._loop = loop
        self._info = info
        self._facts = facts
        self._max_waiting_tokens = max_waiting_tokens
        self._pictures = pictures
        self._threads = ThreadPoolExecutor(_NUM_TOKENIZER_THREADS, thread_name_prefix="chiasm-tokenizer")
        self._num_open = 0

    @classmethod
    def start(
        cls,
        directory: Path,
        name: str,
        model: PoolingModel,
        engine: EngineSettings,
        settings: PoolingSettings,
        media: MediaSettings,
        progress: Callable[[str, float], None],
    ) -> "LocalPoolingWorker":
        """Load a model; blocks for seconds. `name` is the model's in the API. Raises `EngineStartError`."""
        model = adjusted(model, settings)
        progress("Reading the tokenizer", 0.2)
        template = pair_template(settings) if model.shape == "yes_no" else None
        tokenizer = InputTokenizer(directory, model, max_tokens=model.max_tokens, template=template)
        pictures = PictureReader.of(directory, media) if model.takes_images else None
        progress("Loading the weights", 0.3)
        runner = PoolingRunner(
            directory,
            model,
            dtype=getattr(torch, engine.dtype),
            step_token_id=tokenizer.token_id(settings.step_token) if model.pooling == "step" else None,
            answers=(tokenizer.token_id(settings.yes_token), tokenizer.token_id(settings.no_token))
            if template
            else None,
        )
        loop = PoolingLoop(
            runner,
            max_batch_tokens=settings.max_batch_tokens,
            max_delay_s=settings.max_delay_s,
            threads=engine.threads or torch.get_num_threads(),
        )
        info = WorkerInfo(
            model=name,
            family=model.model_type,
            roles=(),
            dtype=engine.dtype,
            device="cpu",
            max_model_tokens=model.max_tokens,
            takes_images=False,  # of chat requests; pooling has its own fact
            model_revision=model_revision(directory, engine.dtype),
            processor_revision=pictures.revision if pictures else "",
            started_at_unix_s=time.time(),
        )
        return cls(
            model, tokenizer, loop, info, pooling_info(model, runner.width), settings.max_waiting_tokens, pictures
        )

    @property
    def info(self) -> WorkerInfo:
        """See `Worker`."""
        return self._info

    @property
    def pooling(self) -> PoolingInfo:
        """See `PoolingWorker`."""
        return self._facts

    def stats(self) -> WorkerStats:
        """See `Worker`."""
        loop = self._loop
        return WorkerStats(
            is_healthy=loop.is_alive,
            num_running=0,
            num_waiting=loop.num_open,
            num_free_slots=0,
            num_cached_blocks=0,
            num_cached_embeddings=0,
            num_held_embeddings=0,
            num_open_requests=self._num_open,
            totals={
                "pooling_batches": loop.num_batches,
                "pooling_inputs": loop.num_inputs,
                "pooling_tokens": loop.num_tokens,
            },
        )

    async def pool(self, request: PoolRequest) -> PoolResponse:
        """See `PoolingWorker`."""
        self._check(request)
        clock = StageClock()
        self._num_open += 1
        try:
            async with until(asyncio.get_running_loop().time() + request.timeout_s):
                return await self._pooled(request, clock)
        finally:
            self._num_open -= 1

    def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent, None]:
        """See `Worker`. Raises `UnsupportedFeatureError`."""
        raise self._not_done("generate text")

    async def encode(self, request: EncodeRequest) -> EncodeResponse:
        """See `Worker`. Raises `UnsupportedFeatureError`."""
        raise self._not_done("encode media")

    async def memory(self, timeout_s: float) -> tuple[WorkerMemory, ...]:
        """See `Weighable`."""
        weights = {"pooler": self._loop.weight_bytes}
        async with until(asyncio.get_running_loop().time() + timeout_s):
            return (await asyncio.to_thread(lambda: weigh(self._info.name, weights=weights)),)

    async def aclose(self) -> None:
        """See `Worker`."""
        await asyncio.to_thread(self._loop.stop)
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._pictures is not None:
            self._pictures.close()

    def _not_done(self, what: str) -> UnsupportedFeatureError:
        tasks = ", ".join(self._facts.tasks)
        return UnsupportedFeatureError(f"{self._info.model} does not {what}", hint=f"It is served for: {tasks}")

    def _check(self, request: PoolRequest) -> None:
        if not self._loop.is_alive:
            raise dead()
        if request.task not in self._facts.tasks:
            raise self._not_done(request.task)
        must_be_pairs = request.task == "score"
        for item, one in enumerate(request.inputs):
            if must_be_pairs and not isinstance(one, PairInput):
                raise InvalidRequestError("Scores are of pairs", item=item)
            if isinstance(one, ImageInput) and self._pictures is None:
                raise UnsupportedFeatureError(f"{self._info.model} takes no pictures", hint="Send texts")
            if isinstance(one, ImageInput) and isinstance(one.item.source, EmbeddingHandle | LateSource):
                raise UnsupportedFeatureError("Pooling takes media, not embeddings", hint="Send the picture itself")
            if isinstance(one, ImageInput) and request.task != "embed":
                raise InvalidRequestError(f"A picture cannot be used for {request.task}", item=item)
        dimensions = request.params.dimensions
        if dimensions is not None:
            self._check_dimensions(dimensions)

    def _check_dimensions(self, dimensions: int) -> None:
        facts = self._facts
        if dimensions > facts.width:
            raise InvalidRequestError(f"dimensions {dimensions} is more than the model's {facts.width}")
        if facts.dimensions and dimensions not in (*facts.dimensions, facts.width):
            raise InvalidRequestError(
                f"The model was not trained for {dimensions} dimensions",
                hint=f"Use one of {', '.join(map(str, facts.dimensions))}",
            )

    async def _pooled(self, request: PoolRequest, clock: StageClock) -> PoolResponse:
        pictures = {} if self._pictures is None else await self._pictures.prepared(request.inputs, clock)
        with clock.stage("tokenize"):
            loop = asyncio.get_running_loop()
            reading = await loop.run_in_executor(self._threads, read, request, self._model, self._tokenizer, pictures)
        num_tokens = sum(one.content.num_tokens for one in reading.inputs)
        self._admit(num_tokens)
        rows = await self._computed(reading, clock)
        with clock.stage("post"):
            outputs = reading.outputs(rows)
        return PoolResponse(outputs=outputs, num_computed_tokens=num_tokens, spans=tuple(clock.spans))

    def _admit(self, num_tokens: int) -> None:
        waiting = self._loop.num_waiting_tokens
        if waiting and waiting + num_tokens > self._max_waiting_tokens:
            raise OverloadedError(
                f"{waiting} tokens wait, and {num_tokens} more are too many", hint="Retry after the time in Retry-After"
            )

    async def _computed(self, reading: Reading, clock: StageClock) -> list[Array]:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def on_end(error: ChiasmError | None) -> None:
            with suppress(RuntimeError):  # the event loop has been closed meanwhile
                loop.call_soon_threadsafe(_settle, ended, error)

        work = PoolingWork(reading.inputs, on_end)
        self._loop.submit(work)
        try:
            await ended
        finally:
            self._loop.cancel(work)
        clock.add("pool_queue", work.arrived_s - clock.start, work.started_s - clock.start)
        clock.add("forward", work.started_s - clock.start, work.ended_s - clock.start)
        return [row for row in work.rows if row is not None]


def _settle(ended: "asyncio.Future[None]", error: ChiasmError | None) -> None:
    if ended.done():
        return
    if error is None:
        ended.set_result(None)
    else:
        ended.set_exception(error)
