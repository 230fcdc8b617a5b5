"""A worker in this process around the embedded engine, with any of the three roles."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path

from chiasm.connectors.base import Transport
from chiasm.connectors.local import LocalConnector
from chiasm.engines.embedded.adapters.store import AdapterStore
from chiasm.engines.embedded.engine import EmbeddedEngine, Progress
from chiasm.errors import UnsupportedFeatureError
from chiasm.media.decoding import PictureDecoder
from chiasm.media.prepare.base import ImagePreparer
from chiasm.observability.memory import WorkerMemory
from chiasm.observability.receipt import StageClock
from chiasm.protocol.adapters import AdapterInfo, AdapterLoad, AdapterRef
from chiasm.protocol.deletion import Deleted, Deletion
from chiasm.protocol.generation import GenerateEvent, GenerateRequest
from chiasm.protocol.media import EmbeddingHandle, LateSource
from chiasm.protocol.worker import EncodeRequest, EncodeResponse, Role, SupplyRequest, WorkerInfo, WorkerStats
from chiasm.settings import AdapterSettings, EngineSettings, MediaSettings, TransferSettings
from chiasm.workers.deadline import until
from chiasm.workers.embeddings import EmbeddingSource
from chiasm.workers.generations import Generations
from chiasm.workers.handover import KvExchange
from chiasm.workers.memory import weigh
from chiasm.workers.roles import ALL_ROLES, check_request, check_roles, require_role
from chiasm.workers.transfers import TensorMover

_TRANSFER = TransferSettings()
_ADAPTERS = AdapterSettings()


class LocalWorker:
    """Implements `chiasm.protocol.worker.LateWorker`. Made on any thread, used on one event loop."""

    def __init__(
        self,
        engine: EmbeddedEngine,
        connector: LocalConnector,
        decoder: PictureDecoder,
        mover: TensorMover,
        info: WorkerInfo,
        max_held_kv_bytes: int,
    ) -> None:
        self._engine = engine
        self._connector = connector
        self._decoder = decoder
        self._mover = mover
        self._info = info
        self._embeddings = EmbeddingSource(engine, connector, decoder, mover)
        self._num_encode_calls = 0
        self._generations: Generations | None = None
        if engine.language is not None:
            kv = KvExchange(engine.language, mover, max_held_kv_bytes)
            self._generations = Generations(engine, engine.language, self._embeddings, kv)

    @classmethod
    def start(  # noqa: PLR0913 - all that makes one worker differ from another
        cls,
        directory: Path,
        model: str,
        engine: EngineSettings,
        media: MediaSettings,
        progress: Progress,
        *,
        roles: Sequence[Role] = ALL_ROLES,
        name: str = "local",
        transport: Transport | None = None,
        transfer: TransferSettings = _TRANSFER,
        adapters: AdapterSettings = _ADAPTERS,
    ) -> "LocalWorker":
        """Load what the roles need of a model; blocks for seconds.

        Args:
            directory: Of the model.
            model: Its name in the API.
            engine: Settings.
            media: Settings.
            progress: Told how the start goes.
            roles: Stages that this worker takes.
            name: Of the worker.
            transport: For tensors to and from other workers; closed with the worker.
            transfer: Times and sizes for it.
            adapters: Which adapters may be loaded.

        Raises:
            EngineStartError: The model cannot be served, or not with these roles.
        """
        chosen = check_roles(roles, has_transport=transport is not None)
        connector = _embedding_cache(engine)
        is_fast = media.preparation == "fast"
        embedded = EmbeddedEngine(engine, directory, connector, progress, chosen, is_fast=is_fast, adapters=adapters)
        info = _info(embedded, name, model, chosen, has_transport=transport is not None)
        mover = TensorMover(transport, transfer)
        return cls(embedded, connector, PictureDecoder(media), mover, info, transfer.max_bytes)

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
        core, encoder, generations = self._engine.core, self._engine.encoder, self._generations
        adapters = self._engine.language.adapters if self._engine.language is not None else None
        return WorkerStats(
            is_healthy=self._engine.loop.is_alive,
            num_running=core.scheduler.num_running if core else 0,
            num_waiting=core.scheduler.num_waiting if core else 0,
            num_free_slots=core.scheduler.slots.num_free if core else 0,
            num_cached_blocks=len(core.pool) if core else 0,
            num_pinned_blocks=core.pool.num_pinned if core else 0,
            num_cached_embeddings=self._connector.num_stored,
            num_held_embeddings=self._connector.num_held,
            num_open_requests=self._num_encode_calls + (generations.num_open if generations else 0),
            num_offered_tensors=self._mover.num_offered,
            num_adapters=adapters.num_resident if adapters else 0,
            num_decoding_pictures=self._decoder.num_decoding,
            num_decoding_pixels=self._decoder.num_decoding_pixels,
            totals={
                **(core.totals if core else {}),
                "out_of_memory": self._num_out_of_memory,
                "adapter_loads": adapters.num_loads if adapters else 0,
                "adapters_evicted": adapters.num_evicted if adapters else 0,
                "encoded_items": encoder.num_encoded if encoder else 0,
                "encodes_avoided_embedding": self._embeddings.num_hits,
                "encodes_avoided_prefix": generations.num_covered_items if generations else 0,
                "decoded_items": self._decoder.num_decoded,
                "taken_tensors": self._mover.num_taken,
                "taken_bytes": self._mover.taken_bytes,
            },
        )

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent, None]:
        """See `Worker`."""
        if self._generations is None:
            require_role("prefill", self._info.roles, "compute prompts")
        check_request(request, self._info.roles, has_transport=self._mover.can_move)
        assert self._generations is not None
        async with aclosing(self._generations.events(request)) as events:
            async for event in events:
                yield event

    async def encode(self, request: EncodeRequest) -> EncodeResponse:
        """See `Worker`. The embeddings stay in the cache, unheld, until room is needed."""
        require_role("encode", self._info.roles, "encode media")
        if any(isinstance(item.source, LateSource) for item in request.items):
            raise UnsupportedFeatureError("An encoder takes media, not embeddings")
        clock = StageClock()
        self._num_encode_calls += 1
        try:
            async with until(asyncio.get_running_loop().time() + request.timeout_s):
                handles = await self._encoded(request, clock)
        finally:
            self._num_encode_calls -= 1
        keys = (self._engine.embedding_key(item.identity, request.cache_salt) for item in request.items)
        return EncodeResponse(handles=tuple(handles[key] for key in keys), spans=tuple(clock.spans))

    async def supply(self, request: SupplyRequest) -> None:
        """See `LateWorker`."""
        if self._generations is None:
            require_role("prefill", self._info.roles, "compute prompts")
        assert self._generations is not None
        await self._generations.late.supply(request)

    async def _encoded(self, request: EncodeRequest, clock: StageClock) -> dict[str, EmbeddingHandle]:
        """Handles by key, good for other workers where there is a transport."""
        held = await self._embeddings.hold_all(request.request_id, enumerate(request.items), clock, request.cache_salt)
        try:
            if not self._mover.can_move:
                return held.handles
            offers = await asyncio.gather(
                *(self._embeddings.offer(one, clock, request.cache_salt) for one in held.handles.values())
            )
            return {handle.key: handle for handle in offers}
        finally:
            self._embeddings.release(held.handles.values())

    async def load_adapter(self, load: AdapterLoad, timeout_s: float) -> AdapterInfo:
        """See `Adaptable`."""
        store = self._adapters()
        async with until(asyncio.get_running_loop().time() + timeout_s):
            return await asyncio.to_thread(store.load, load)

    async def unload_adapter(self, ref: AdapterRef, timeout_s: float) -> None:
        """See `Adaptable`."""
        self._adapters().unload(ref)

    def _adapters(self) -> AdapterStore:
        language = self._engine.language
        if language is None:
            raise UnsupportedFeatureError("An encoder computes with no adapters")
        return language.adapters

    async def forget(self, deletion: Deletion, timeout_s: float) -> tuple[Deleted, ...]:
        """See `Forgetful`."""
        if deletion.offer is not None:
            return (Deleted(worker=self._info.name, num_offers=await self._mover.forget(deletion)),)
        async with until(asyncio.get_running_loop().time() + timeout_s):
            num_embeddings, num_used = self._embeddings.forget(deletion)
            num_offers = await self._mover.forget(deletion)
            num_blocks, num_pinned = await asyncio.wrap_future(self._engine.loop.forget(deletion))
        deleted = Deleted(
            worker=self._info.name,
            num_embeddings=num_embeddings,
            num_offers=num_offers,
            num_blocks=num_blocks,
            num_pending=num_pinned + num_used,
        )
        return (deleted,)

    async def memory(self, timeout_s: float) -> tuple[WorkerMemory, ...]:
        """See `Weighable`."""
        async with until(asyncio.get_running_loop().time() + timeout_s):
            return (await asyncio.to_thread(self._weigh),)

    def _weigh(self) -> WorkerMemory:
        engine = self._engine
        return weigh(
            self._info.name,
            weights=engine.weights,
            parts=(
                *(engine.core.memory_parts() if engine.core else ()),
                *(engine.language.adapters.memory_parts() if engine.language else ()),
                *self._connector.memory_parts(),
                *self._mover.memory_parts(),
                self._decoder.memory_part(),
            ),
            kv_bytes_per_token=engine.core.kv_bytes_per_token if engine.core else 0,
            embedding_bytes_per_token=engine.embedding_bytes_per_token,
            num_out_of_memory=self._num_out_of_memory,
        )

    @property
    def _num_out_of_memory(self) -> int:
        core, encoder = self._engine.core, self._engine.encoder
        return (core.totals["out_of_memory"] if core else 0) + (encoder.num_out_of_memory if encoder else 0)

    async def aclose(self) -> None:
        """See `Worker`."""
        await asyncio.to_thread(self._engine.loop.stop)
        if self._generations is not None:
            self._generations.close()
        self._mover.close()
        self._decoder.close()


def _embedding_cache(engine: EngineSettings) -> LocalConnector:
    return LocalConnector(
        capacity_bytes=engine.embedding_cache_bytes,
        max_held_bytes=engine.max_held_embedding_bytes,
        ttl_s=engine.embedding_ttl_s,
    )


def _info(
    embedded: EmbeddedEngine, name: str, model: str, chosen: Sequence[Role], *, has_transport: bool
) -> WorkerInfo:
    return WorkerInfo(
        name=name,
        model=model,
        family=embedded.family.name,
        roles=tuple(role for role in chosen if role != "encode" or embedded.encoder is not None),
        dtype=embedded.dtype,
        device="cpu",
        max_model_tokens=embedded.max_tokens,
        takes_images=embedded.preparer is not None,
        takes_late_embeddings=embedded.language is not None and has_transport,
        takes_adapters=embedded.language is not None,
        model_revision=embedded.model_revision,
        processor_revision=embedded.preparer.revision if embedded.preparer else "",
        started_at_unix_s=time.time(),
    )
