"""The way from a media item to a held embedding: cached, under way for somebody else, taken over, or encoded now."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import msgspec

from chiasm.cache.label import CacheLabel, Deletions
from chiasm.connectors.base import ITEM_SIZE_BYTES, Buffer, check_embedding
from chiasm.connectors.local import LocalConnector
from chiasm.engines.embedded.encoder import Encoded, EncodeJob
from chiasm.engines.embedded.engine import EmbeddedEngine
from chiasm.errors import ChiasmError, HandleExpiredError, UnsupportedFeatureError, UnsupportedMediaError
from chiasm.media.decoding import PictureDecoder
from chiasm.media.item_errors import naming_item
from chiasm.media.prepare.base import ImagePreparer
from chiasm.media.prepare.items import plan_of
from chiasm.observability.receipt import StageClock
from chiasm.protocol.deletion import Deletion
from chiasm.protocol.media import EmbeddingHandle, MediaItem
from chiasm.workers.flights import SingleFlight
from chiasm.workers.transfers import TensorMover

_Work = Callable[[], Awaitable[EmbeddingHandle]]


@dataclass(frozen=True)
class HeldEmbeddings:
    """Embeddings by key, each held once. `num_cached` were there already."""

    handles: dict[str, EmbeddingHandle]
    num_cached: int


@dataclass(frozen=True)
class _Wanted:
    """An item of a request, its position there, and the embedding's key in the scope of the request's salt."""

    request_id: str
    key: str
    cache_salt: str
    index: int
    item: MediaItem

    @property
    def label(self) -> CacheLabel:
        """By what its embedding can be deleted."""
        return CacheLabel(self.cache_salt, frozenset({self.item.identity}))

    def flight(self, source: EmbeddingHandle | None) -> "_Flight":
        """The work that brings it: taking it over from its source, or encoding it."""
        return _Flight(self.key, source, self.label)


class _Flight(NamedTuple):
    key: str
    source: EmbeddingHandle | None
    label: CacheLabel


class EmbeddingSource:
    """Gives items their embeddings; a distinct picture is encoded or taken over once, however many ask for it."""

    def __init__(
        self, engine: EmbeddedEngine, connector: LocalConnector, decoder: PictureDecoder, mover: TensorMover
    ) -> None:
        self._engine = engine
        self._connector = connector
        self._decoder = decoder
        self._mover = mover
        self._flights: SingleFlight[_Flight, EmbeddingHandle] = SingleFlight(self._landed)
        self._deletions = Deletions()
        self.num_hits = 0

    @property
    def num_in_flight(self) -> int:
        """Pictures being decoded, encoded or taken over."""
        return len(self._flights)

    async def hold_all(
        self, request_id: str, items: Iterable[tuple[int, MediaItem]], clock: StageClock, cache_salt: str
    ) -> HeldEmbeddings:
        """Hold the embedding of every item; none stays held when one fails or the caller is cancelled.

        Args:
            request_id: Whose they are.
            items: With their positions in the request, which spans and errors name.
            clock: Gets the spans.
            cache_salt: Only what was made under the same one is found, or waited for.
        """
        held: dict[str, EmbeddingHandle] = {}
        missing: dict[str, tuple[int, MediaItem]] = {}
        for index, item in items:
            key = self._engine.embedding_key(item.identity, cache_salt)
            if key in held or key in missing:
                continue
            cached = self._connector.hold(key)
            if cached is None:
                missing[key] = (index, item)
            else:
                held[key] = cached
        self.num_hits += len(held)
        num_cached = len(held)
        tasks = [
            asyncio.ensure_future(self._get(_Wanted(request_id, key, cache_salt, index, item), clock))
            for key, (index, item) in missing.items()
        ]
        try:
            held |= zip(missing, await asyncio.gather(*tasks), strict=True)
        except BaseException:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            for handle in [*held.values(), *(result for result in results if isinstance(result, EmbeddingHandle))]:
                self._connector.release(handle.key)
            raise
        return HeldEmbeddings(held, num_cached)

    def release(self, handles: Iterable[EmbeddingHandle]) -> None:
        """Give up what `hold_all` gave."""
        for handle in handles:
            self._connector.release(handle.key)

    def forget(self, deletion: Deletion) -> tuple[int, int]:
        """Delete embeddings; returns how many are gone, and how many are in use or on their way, and go after that."""
        self._deletions.add(deletion, time.perf_counter())
        under_way = self._flights.disown(lambda flight: flight.label.is_covered(deletion))
        num_gone, held = self._connector.forget(deletion)
        return num_gone, len({*held, *(flight.key for flight in under_way)})

    async def offer(self, handle: EmbeddingHandle, clock: StageClock, cache_salt: str) -> EmbeddingHandle:
        """Offer a held embedding to other workers; returns the handle they can take it by."""
        label = CacheLabel(cache_salt, frozenset({handle.metadata.identity}))
        with clock.stage("transfer"):
            offer = await self._mover.offer(handle.key, self._connector.data(handle.key), label)
        return msgspec.structs.replace(
            handle, connector=offer.connector, address=offer.address, expires_at_s=offer.expires_at_s
        )

    def _landed(self, handle: EmbeddingHandle, is_wanted: bool) -> None:  # noqa: FBT001 - as `SingleFlight` calls it
        if not is_wanted:
            self._connector.remove(handle.key)
        self._connector.release(handle.key)

    async def _get(self, wanted: _Wanted, clock: StageClock) -> EmbeddingHandle:
        with naming_item(wanted.index):
            preparer = self._engine.preparer
            if preparer is None:
                raise UnsupportedMediaError("This model takes no pictures", hint="Serve a vision-language model.")
            source = wanted.item.source
            if isinstance(source, EmbeddingHandle):
                take = partial(self._take, source, wanted, preparer)
                return await self._shared(wanted.flight(source), wanted.index, clock, "transfer", take)
            if self._engine.encoder is None:
                raise HandleExpiredError(  # not the caller's fault: it was thought to be covered here
                    "this worker has no embedding of it, and makes none",
                    hint="Send the handle of an embedding, or send the item to a worker with the role encode.",
                )
            encode = partial(self._encode, wanted, preparer, clock)
            return await self._shared(wanted.flight(None), wanted.index, clock, "encode_queue", encode)

    async def _shared(self, flight: _Flight, index: int, clock: StageClock, stage: str, work: _Work) -> EmbeddingHandle:
        """Wait for the work that is under way, or start it. `stage` is what waiting counts as."""
        joined_s, is_first = clock.now_s(), flight not in self._flights
        async with self._flights.join(flight, work) as handle:
            if stage == "transfer" or not is_first:
                clock.add(stage, joined_s, clock.now_s(), index)
            shared = self._connector.share(handle.key)  # the flight holds what it published
            if self._deletions.cover(flight.label, clock.start):
                self._connector.remove(handle.key)
            return shared

    async def _take(self, handle: EmbeddingHandle, wanted: _Wanted, preparer: ImagePreparer) -> EmbeddingHandle:
        """Take over what another worker has encoded, checked against this worker's own plan."""
        language, item = self._engine.language, wanted.item
        if language is None:
            raise UnsupportedFeatureError("An encoder takes media, not embeddings")
        expected = language.expected_embedding(item.identity, plan_of(preparer, item))

        def check(data: Buffer) -> Buffer:
            check_embedding(handle.metadata, data, expected)
            return data

        num_bytes = expected.num_embeddings * expected.width * ITEM_SIZE_BYTES[expected.dtype]
        data = await self._mover.take(handle, num_bytes, check)
        return self._connector.publish(handle.metadata, data, wanted.cache_salt)

    async def _encode(self, wanted: _Wanted, preparer: ImagePreparer, clock: StageClock) -> EmbeddingHandle:
        item, index = wanted.item, wanted.index
        prepared = await self._decoder.prepare(item, preparer, clock, index)
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Encoded] = loop.create_future()

        def done(outcome: Encoded | ChiasmError) -> None:
            loop.call_soon_threadsafe(self._settle, result, outcome)

        job = EncodeJob(wanted.request_id, item.identity, prepared, done, wanted.cache_salt)
        queued_s = clock.now_s()
        self._engine.loop.encode(job)
        try:
            encoded = await result
        except asyncio.CancelledError:
            self._engine.loop.cancel_encode(job)
            if result.done() and not result.cancelled() and result.exception() is None:
                self._connector.release(result.result().handle.key)  # it came, and nobody will have it
            raise
        clock.add("encode_queue", queued_s, encoded.start_s - clock.start, index)
        clock.add("encode", encoded.start_s - clock.start, encoded.end_s - clock.start, index)
        return encoded.handle

    def _settle(self, result: "asyncio.Future[Encoded]", outcome: Encoded | ChiasmError) -> None:
        if result.done():  # cancelled meanwhile: nobody will release what was published
            if isinstance(outcome, Encoded):
                self._connector.release(outcome.handle.key)
        elif isinstance(outcome, Encoded):
            result.set_result(outcome)
        else:
            result.set_exception(outcome)
