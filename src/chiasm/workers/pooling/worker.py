"""The pooling worker of this process."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import torch

from chiasm.connectors.local import LocalConnector
from chiasm.engines.embedded.decoder.native_decoder import threads_for
from chiasm.engines.embedded.revision import model_revision
from chiasm.engines.pooling.backbone import Computing
from chiasm.engines.pooling.dual import Picture
from chiasm.engines.pooling.loop import PoolingLoop, PoolingWork, dead
from chiasm.engines.pooling.runner import PoolingInput, PoolingRunner, costs
from chiasm.engines.pooling.tokens import InputTokenizer
from chiasm.errors import ChiasmError, EngineStartError, OverloadedError, UnsupportedFeatureError
from chiasm.media.decoding import PictureDecoder
from chiasm.media.prepare.base import ImagePreparer
from chiasm.media.prepare.reduced import ReducedPreparer
from chiasm.media.prepare.registry import preparer_for
from chiasm.observability.memory import WorkerMemory
from chiasm.observability.receipt import StageClock
from chiasm.pooling.model_files import PoolingModel
from chiasm.protocol.deletion import Deleted, Deletion
from chiasm.protocol.generation import GenerateEvent, GenerateRequest
from chiasm.protocol.pooling.work import PoolingInfo, PoolRequest, PoolResponse, media_of
from chiasm.protocol.worker import EncodeRequest, EncodeResponse, WorkerInfo, WorkerStats
from chiasm.settings import EngineSettings, MediaSettings, PoolingSettings
from chiasm.workers.deadline import until
from chiasm.workers.memory import weigh
from chiasm.workers.pooling.checks import check_request
from chiasm.workers.pooling.facts import adjusted, answer_ids, pair_template, pooling_info
from chiasm.workers.pooling.features import Found, PictureFeatures, Revisions
from chiasm.workers.pooling.tasks import Array, Reader, Similarity

_NOTHING = Found({}, {})
_NUM_TOKENIZER_THREADS = 2


class LocalPoolingWorker:
    """Implements `chiasm.protocol.pooling.work.PoolingWorker`. Made on any thread, used on one event loop."""

    def __init__(
        self,
        reader: Reader,
        loop: PoolingLoop,
        info: WorkerInfo,
        facts: PoolingInfo,
        max_waiting_tokens: int,
    ) -> None:
        self._reader = reader
        self._loop = loop
        self._info = info
        self._facts = facts
        self._max_waiting_tokens = max_waiting_tokens
        self._features: PictureFeatures | None = None
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
        preparer = picture_preparer(directory, is_fast=media.preparation == "fast") if model.takes_images else None
        progress("Loading the weights", 0.3)
        threads = threads_for(engine.threads or torch.get_num_threads())
        runner = PoolingRunner(
            directory,
            model,
            computing=Computing(getattr(torch, engine.dtype), threads, engine.decoder),
            step_token_id=tokenizer.token_id(settings.step_token) if model.pooling == "step" else None,
            answers=answer_ids(tokenizer, settings) if template else None,
        )
        decoder = PictureDecoder(media) if preparer else None
        loop = _loop(runner, settings, threads, decoder)
        info = WorkerInfo(
            model=name,
            family=model.model_type,
            roles=(),
            dtype=engine.dtype,
            device="cpu",
            max_model_tokens=model.max_tokens,
            takes_images=False,  # of chat requests; pooling has its own fact
            model_revision=model_revision(directory, engine.dtype),
            processor_revision=preparer.revision if preparer else "",
            started_at_unix_s=time.time(),
        )
        similarity = None if runner.similarity is None else Similarity(*runner.similarity)
        reader = Reader(model, tokenizer, similarity)
        worker = cls(reader, loop, info, pooling_info(model, runner.width), settings.max_waiting_tokens)
        if preparer is not None and decoder is not None:
            worker.see(preparer, decoder, runner.feature_shape, engine)
        return worker

    def see(
        self, preparer: ImagePreparer, decoder: PictureDecoder, shape: tuple[int, int], engine: EngineSettings
    ) -> None:
        """Take pictures from now on. `shape` is that of one picture's features."""
        cache = LocalConnector(
            capacity_bytes=engine.embedding_cache_bytes,
            max_held_bytes=engine.max_held_embedding_bytes,
            ttl_s=engine.embedding_ttl_s,
        )
        revisions = Revisions(self._info.model_revision, preparer.revision, shape)
        self._features = PictureFeatures(preparer, decoder, cache, revisions, self._encoded)

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
        loop, features = self._loop, self._features
        totals: dict[str, float] = {
            "pooling_batches": loop.num_batches,
            "pooling_inputs": loop.num_inputs,
            "pooling_tokens": loop.num_tokens,
        }
        if features is not None:
            totals["embedding_hits"] = features.num_hits
            totals["pooling_pictures_decoded"] = features.num_decoded
            totals["pooling_pictures_encoded"] = features.num_encoded
        return WorkerStats(
            is_healthy=loop.is_alive,
            num_running=0,
            num_waiting=loop.num_open,
            num_free_slots=0,
            num_cached_blocks=0,
            num_cached_embeddings=0 if features is None else features.num_stored,
            num_held_embeddings=0 if features is None else features.num_in_flight,
            num_open_requests=self._num_open,
            totals=totals,
        )

    async def pool(self, request: PoolRequest) -> PoolResponse:
        """See `PoolingWorker`."""
        if not self._loop.is_alive:
            raise dead()
        check_request(request, self._facts, self._info.model)
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

    async def forget(self, deletion: Deletion, timeout_s: float) -> tuple[Deleted, ...]:
        """See `Forgetful`. Of texts nothing is kept."""
        num_gone, num_pending = (0, 0) if self._features is None else self._features.forget(deletion)
        return (Deleted(worker=self._info.name, num_embeddings=num_gone, num_pending=num_pending),)

    async def memory(self, timeout_s: float) -> tuple[WorkerMemory, ...]:
        """See `Weighable`."""
        async with until(asyncio.get_running_loop().time() + timeout_s):
            return (await asyncio.to_thread(self._weigh),)

    async def aclose(self) -> None:
        """See `Worker`."""
        await asyncio.to_thread(self._loop.stop)
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._features is not None:
            self._features.close()

    def _weigh(self) -> WorkerMemory:
        parts = () if self._features is None else self._features.memory_parts()
        return weigh(self._info.name, weights={"pooling model": self._loop.weight_bytes}, parts=parts)

    def _not_done(self, what: str) -> UnsupportedFeatureError:
        tasks = ", ".join(self._facts.tasks)
        return UnsupportedFeatureError(f"{self._info.model} does not {what}", hint=f"It is served for: {tasks}")

    async def _pooled(self, request: PoolRequest, clock: StageClock) -> PoolResponse:
        found = await self._found(request, clock)
        with clock.stage("tokenize"):
            loop, read = asyncio.get_running_loop(), self._reader.read
            reading = await loop.run_in_executor(self._threads, read, request, found.features, found.failures)
        rows = await self._computed(reading.inputs, clock)
        with clock.stage("post"):
            outputs = reading.outputs(rows)
        return PoolResponse(
            outputs=outputs,
            num_computed_tokens=found.num_computed_tokens + sum(costs(reading.inputs)),
            num_visual_tokens=sum(one.num_tokens for one in found.features.values()),
            num_cached_embeddings=found.num_cached,
            spans=tuple(clock.spans),
        )

    async def _found(self, request: PoolRequest, clock: StageClock) -> Found:
        items = [item for one in request.inputs for item in media_of(one)]
        if not items or self._features is None:
            return _NOTHING
        is_tolerant = request.params.reports_failures
        return await self._features.find(items, clock, request.cache_salt, is_tolerant=is_tolerant)

    async def _encoded(self, pictures: Sequence[Picture]) -> PoolingWork:
        return await self._run([PoolingInput(one) for one in pictures])

    async def _computed(self, inputs: Sequence[PoolingInput], clock: StageClock) -> list[Array]:
        if not inputs:  # only of pictures whose features were known
            return []
        work = await self._run(inputs)
        clock.add("pool_queue", work.arrived_s - clock.start, work.started_s - clock.start)
        clock.add("forward", work.started_s - clock.start, work.ended_s - clock.start)
        return work.finished_rows()

    async def _run(self, inputs: Sequence[PoolingInput]) -> PoolingWork:
        """Have inputs computed. Raises `OverloadedError` or `EngineError`."""
        self._admit(sum(costs(inputs)))
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def on_end(error: ChiasmError | None) -> None:
            with suppress(RuntimeError):  # the event loop has been closed meanwhile
                loop.call_soon_threadsafe(_settle, ended, error)

        work = PoolingWork(inputs, on_end)
        self._loop.submit(work)
        try:
            await ended
        finally:
            self._loop.cancel(work)
        return work

    def _admit(self, num_tokens: int) -> None:
        waiting = self._loop.num_waiting_tokens
        if waiting and waiting + num_tokens > self._max_waiting_tokens:
            raise OverloadedError(
                f"{waiting} tokens wait, and {num_tokens} more are too many", hint="Retry after the time in Retry-After"
            )


def picture_preparer(directory: Path, *, is_fast: bool = False) -> ImagePreparer:
    """Read how the model's pictures are prepared. Raises `UnsupportedModelError` or `EngineStartError`."""
    preparer = preparer_for(directory)
    if preparer is None:
        raise EngineStartError(
            f"{directory.name} does not say how its pictures are prepared",
            hint="Save the model with its image processor: preprocessor_config.json is missing",
        )
    return ReducedPreparer(preparer) if is_fast else preparer


def _loop(
    runner: PoolingRunner, settings: PoolingSettings, threads: int, decoder: PictureDecoder | None
) -> PoolingLoop:
    return PoolingLoop(
        runner,
        max_batch_tokens=settings.max_batch_tokens,
        max_delay_s=settings.max_delay_s,
        threads=threads,
        is_crowded=decoder.is_crowding if decoder else lambda: False,
    )


def _settle(ended: "asyncio.Future[None]", error: ChiasmError | None) -> None:
    if ended.done():
        return
    if error is None:
        ended.set_result(None)
    else:
        ended.set_exception(error)
