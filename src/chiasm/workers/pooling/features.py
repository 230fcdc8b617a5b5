"""Features of pictures: kept by content, model and scope, or decoded and encoded now, once for all who wait."""

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from chiasm.cache.label import CacheLabel, Deletions
from chiasm.connectors.base import ExpectedEmbedding, checksum, embedding_key
from chiasm.connectors.local import LocalConnector
from chiasm.engines.pooling.dual import Feature, Picture
from chiasm.errors import MediaError
from chiasm.media.decoding import PictureDecoder
from chiasm.media.item_errors import naming_item
from chiasm.media.prepare.base import ImagePreparer
from chiasm.observability.memory import MemoryPart
from chiasm.observability.receipt import StageClock
from chiasm.protocol.deletion import Deletion
from chiasm.protocol.media import EmbeddingHandle, EmbeddingMetadata, MediaItem
from chiasm.workers.flights import SingleFlight
from chiasm.workers.pooling.company import Company, Encode


@dataclass(frozen=True)
class Found:
    """Features of a request's distinct pictures by identity, and what became of those that cannot be used.

    `num_cached` were there already; `num_computed_tokens` are those of the others, made now or under way.
    """

    features: Mapping[str, Feature]
    failures: Mapping[str, MediaError]
    num_cached: int = 0
    num_computed_tokens: int = 0


class Revisions(NamedTuple):
    """All that shapes features beside the picture's bytes: weights and preparation; and what comes out."""

    model: str
    processor: str
    shape: tuple[int, int]


class _Wanted(NamedTuple):
    """A picture, and its number among those of the request, where it first stands."""

    number: int
    item: MediaItem


class _Flight(NamedTuple):
    key: str
    label: CacheLabel


class PictureFeatures:
    """Belongs to the worker's event loop; `close` when done.

    A feature is found again while the cache has room for it, by requests of the same scope. Two requests that want
    the same picture at once wait for one encoding.
    """

    def __init__(
        self,
        preparer: ImagePreparer,
        decoder: PictureDecoder,
        cache: LocalConnector,
        revisions: Revisions,
        encode: Encode,
    ) -> None:
        self._preparer = preparer
        self._decoder = decoder
        self._cache = cache
        self._revisions = revisions
        self._encode = encode
        self._flights: SingleFlight[_Flight, EmbeddingHandle] = SingleFlight(self._landed)
        self._deletions = Deletions()
        self.num_hits = 0
        self.num_encoded = 0

    @property
    def num_stored(self) -> int:
        """Features in memory."""
        return self._cache.num_stored

    @property
    def num_decoded(self) -> int:
        """Pictures decoded so far."""
        return self._decoder.num_decoded

    @property
    def num_in_flight(self) -> int:
        """Pictures being decoded or encoded."""
        return len(self._flights)

    async def find(self, items: Iterable[MediaItem], clock: StageClock, cache_salt: str, *, is_tolerant: bool) -> Found:
        """Find or make the features of a request's pictures. Cancelling drops what nobody else waits for.

        Args:
            items: Every occurrence; spans and errors name the number of the first one of a picture.
            clock: Gets the spans.
            cache_salt: Only what was made under the same one is found, or waited for.
            is_tolerant: Whether pictures that cannot be used are reported in the result.

        Raises:
            MediaError: A picture is broken or beyond a limit, and that is not tolerated.
            OverloadedError: Too much waits for the engine.
            EngineError: It failed.
        """
        features: dict[str, Feature] = {}
        missing: dict[str, _Wanted] = {}
        for number, item in enumerate(items):
            if item.identity in features or item.identity in missing:
                continue
            cached = self._cached(item, cache_salt)
            if cached is None:
                missing[item.identity] = _Wanted(number, item)
            else:
                features[item.identity] = cached
        num_cached = len(features)
        self.num_hits += num_cached
        if not missing:
            return Found(features, {}, num_cached)
        made = await self._all(missing, clock, cache_salt, is_tolerant=is_tolerant)
        failures = {identity: one for identity, one in made.items() if isinstance(one, MediaError)}
        features |= {identity: one for identity, one in made.items() if isinstance(one, Feature)}
        num_tokens = sum(one.num_tokens for one in made.values() if isinstance(one, Feature))
        return Found(features, failures, num_cached, num_tokens)

    def forget(self, deletion: Deletion) -> tuple[int, int]:
        """Delete features; returns how many are gone, and how many are on their way, and go after that."""
        self._deletions.add(deletion, time.perf_counter())
        under_way = self._flights.disown(lambda flight: flight.label.is_covered(deletion))
        num_gone, held = self._cache.forget(deletion)
        return num_gone, len({*held, *(flight.key for flight in under_way)})

    def memory_parts(self) -> tuple[MemoryPart, ...]:
        """What features, and pictures on their way, take."""
        return (*self._cache.memory_parts(), self._decoder.memory_part())

    def close(self) -> None:
        """End the decoder's threads after what they are at."""
        self._decoder.close()

    async def _all(
        self, missing: Mapping[str, _Wanted], clock: StageClock, cache_salt: str, *, is_tolerant: bool
    ) -> dict[str, Feature | MediaError]:
        company = Company(self._encode, self._decoder.is_crowding)

        async def one(wanted: _Wanted) -> Feature | MediaError:
            try:
                return await self._shared(wanted, company, clock, cache_salt)
            except MediaError as error:
                if not is_tolerant:
                    raise
                return error

        try:
            async with asyncio.TaskGroup() as group:
                tasks = {identity: group.create_task(one(wanted)) for identity, wanted in missing.items()}
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return {identity: task.result() for identity, task in tasks.items()}

    async def _shared(self, wanted: _Wanted, company: Company, clock: StageClock, cache_salt: str) -> Feature:
        """Wait for the encoding that is under way, or start it."""
        number, item = wanted
        label = CacheLabel(cache_salt, frozenset({item.identity}))
        flight = _Flight(self._key(item, cache_salt), label)
        joined_s, is_first = clock.now_s(), flight not in self._flights
        with naming_item(number):
            made = partial(self._made, wanted, company, clock, cache_salt)
            async with self._flights.join(flight, made) as handle:
                if not is_first:
                    clock.add("encode_queue", joined_s, clock.now_s(), number)
                if self._deletions.cover(label, clock.start):
                    self._cache.remove(handle.key)
                return self._loaded(handle, item)

    async def _made(self, wanted: _Wanted, company: Company, clock: StageClock, cache_salt: str) -> EmbeddingHandle:
        number, item = wanted
        decoded_s = 0.0

        async def decoded() -> Picture:
            nonlocal decoded_s
            prepared = await self._decoder.prepare(item, self._preparer, clock, number)
            decoded_s = clock.now_s()
            return Picture(item.identity, prepared.plan.num_embeddings, prepared)

        work, place = await company.encoded(decoded)
        clock.add("encode_queue", decoded_s, work.started_s - clock.start, number)
        clock.add("encode", work.started_s - clock.start, work.ended_s - clock.start, number)
        rows = work.finished_rows()[place]
        self.num_encoded += 1
        data = np.ascontiguousarray(rows).tobytes()
        expected = self._expected(item.identity)
        metadata = EmbeddingMetadata(
            identity=item.identity,
            num_embeddings=expected.num_embeddings,
            shape=(rows.shape[0], rows.shape[1]),
            dtype="float32",
            model_revision=expected.model_revision,
            processor_revision=expected.processor_revision,
            checksum=checksum(data),
        )
        return self._cache.publish(metadata, data, cache_salt)

    def _landed(self, handle: EmbeddingHandle, is_wanted: bool) -> None:  # noqa: FBT001 - as `SingleFlight` calls it
        if not is_wanted:
            self._cache.remove(handle.key)
        self._cache.release(handle.key)

    def _cached(self, item: MediaItem, cache_salt: str) -> Feature | None:
        handle = self._cache.hold(self._key(item, cache_salt))
        if handle is None:
            return None
        try:
            return self._loaded(handle, item)
        finally:
            self._cache.release(handle.key)

    def _loaded(self, handle: EmbeddingHandle, item: MediaItem) -> Feature:
        """The checked rows of a feature that is held now; they live as long as the result."""
        data = self._cache.load(handle, self._expected(item.identity))
        rows = np.frombuffer(data, np.float32).reshape(self._revisions.shape)
        return Feature(item.identity, self._preparer.plan(item.width, item.height).num_embeddings, rows)

    def _expected(self, identity: str) -> ExpectedEmbedding:
        revisions = self._revisions
        num_rows, width = revisions.shape
        return ExpectedEmbedding(
            identity=identity,
            num_embeddings=num_rows,
            width=width,
            dtype="float32",
            grid_thw=None,
            model_revision=revisions.model,
            processor_revision=revisions.processor,
        )

    def _key(self, item: MediaItem, cache_salt: str) -> str:
        return embedding_key(item.identity, self._revisions.model, self._revisions.processor, cache_salt)
