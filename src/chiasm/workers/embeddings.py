"""The way from a media item to a held embedding: cached, under way for somebody else, or decoded and encoded now."""

import asyncio
from collections.abc import Sequence

from chiasm.connectors.base import EmbeddingConnector
from chiasm.engines.embedded.encoder import Encoded, EncodeJob
from chiasm.engines.embedded.engine import EmbeddedEngine
from chiasm.errors import ChiasmError, HandleExpiredError, UnsupportedMediaError
from chiasm.media.decoding import PictureDecoder
from chiasm.media.item_errors import naming_item
from chiasm.observability.receipt import StageClock
from chiasm.protocol.media import EmbeddingHandle, InlineSource, MediaItem
from chiasm.workers.flights import SingleFlight


class EmbeddingSource:
    """Gives every item its embedding; a distinct picture is encoded once, however many ask for it."""

    def __init__(self, engine: EmbeddedEngine, connector: EmbeddingConnector, decoder: PictureDecoder) -> None:
        self._engine = engine
        self._connector = connector
        self._decoder = decoder
        self._flights: SingleFlight[Encoded] = SingleFlight(lambda encoded: connector.release(encoded.handle.key))
        self.num_hits = 0

    @property
    def num_in_flight(self) -> int:
        """Pictures being decoded or encoded."""
        return len(self._flights)

    async def hold_all(self, items: Sequence[MediaItem], clock: StageClock) -> dict[str, EmbeddingHandle]:
        """Handles by embedding key, each held once; none stays held when one item fails or the caller is cancelled."""
        distinct = {self._engine.embedding_key(item.identity): (index, item) for index, item in enumerate(items)}
        tasks = [asyncio.ensure_future(self._hold(key, item, index, clock)) for key, (index, item) in distinct.items()]
        try:
            return dict(zip(distinct, await asyncio.gather(*tasks), strict=True))
        except BaseException:
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, EmbeddingHandle):
                    self._connector.release(result.key)
            raise

    async def _hold(self, key: str, item: MediaItem, index: int, clock: StageClock) -> EmbeddingHandle:
        held = self._connector.hold(key)
        if held is not None:
            self.num_hits += 1
            return held
        if isinstance(item.source, EmbeddingHandle):
            raise HandleExpiredError(
                f"The embedding of item {index} is no longer stored", hint="Send the picture again."
            )
        with naming_item(index):
            return await self._shared(key, item, index, clock)

    async def _shared(self, key: str, item: MediaItem, index: int, clock: StageClock) -> EmbeddingHandle:
        """Wait for the one encoding of this picture that is under way, or start it."""
        joined_s, is_first = clock.now_s(), key not in self._flights
        async with self._flights.join(key, lambda: self._encode(item, index, clock)):
            if not is_first:
                clock.add("encode_queue", joined_s, clock.now_s(), index)
            shared = self._connector.hold(key)
            assert shared is not None, "the flight holds what it published"
            return shared

    async def _encode(self, item: MediaItem, index: int, clock: StageClock) -> Encoded:
        preparer = self._engine.preparer
        if preparer is None:
            raise UnsupportedMediaError(
                "This model takes no pictures", item=index, hint="Serve a vision-language model."
            )
        assert isinstance(item.source, InlineSource)
        prepared = await self._decoder.prepare(item, preparer, clock, index)
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Encoded] = loop.create_future()

        def done(outcome: Encoded | ChiasmError) -> None:
            loop.call_soon_threadsafe(self._settle, result, outcome)

        job = EncodeJob(item.identity, prepared, done)
        queued_s = clock.now_s()
        self._engine.loop.encode(job)
        try:
            encoded = await result
        except asyncio.CancelledError:
            self._engine.loop.cancel_encode(job)
            raise
        clock.add("encode_queue", queued_s, encoded.start_s - clock.start, index)
        clock.add("encode", encoded.start_s - clock.start, encoded.end_s - clock.start, index)
        return encoded

    def _settle(self, result: "asyncio.Future[Encoded]", outcome: Encoded | ChiasmError) -> None:
        if result.done():  # cancelled meanwhile: nobody will release what was published
            if isinstance(outcome, Encoded):
                self._connector.release(outcome.handle.key)
        elif isinstance(outcome, Encoded):
            result.set_result(outcome)
        else:
            result.set_exception(outcome)
