"""Decoding and preparing pictures off the event loop, with the memory of all requests together bounded."""

import asyncio
import os
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

from chiasm.media.isolation.pool import ProcessPool
from chiasm.media.pixel_budget import PixelBudget
from chiasm.media.prepare.base import ImagePreparer, PreparedImage
from chiasm.media.prepare.medium import Announced, prepare_medium
from chiasm.media.sources import read_source
from chiasm.observability.memory import MemoryPart
from chiasm.observability.receipt import StageClock
from chiasm.protocol.media import EmbeddingHandle, LateSource, MediaItem
from chiasm.settings import MediaSettings
from chiasm.settings.niceness import thread_steps_back


class _Decode(Protocol):
    """Where the work is done. Blocks its thread."""

    def decode(
        self, item: MediaItem, preparer: ImagePreparer, clock: StageClock | None, index: int | None
    ) -> PreparedImage: ...

    def close(self) -> None: ...


class PictureDecoder:
    """Encoded items to the encoder's arrays, `decode_threads` at once. Belongs to one event loop.

    The setting `decoder` says whether threads of this process do the work, or processes that can be killed. Waits are
    bounded by the caller: cancel `prepare` when its request's deadline has passed.
    """

    def __init__(self, settings: MediaSettings) -> None:
        self._decode: _Decode = (
            ProcessPool(settings, settings.decode_threads) if settings.decoder == "processes" else _Here(settings)
        )
        self._max_pixels = settings.max_decoding_pixels
        self._pixels = PixelBudget(self._max_pixels)
        self._pool = ThreadPoolExecutor(
            settings.decode_threads, "chiasm-decode", initializer=thread_steps_back, initargs=(settings.niceness,)
        )
        self._num_threads = settings.decode_threads
        self._num_cores = len(os.sched_getaffinity(0))
        self.num_decoding = 0
        self.num_decoded = 0
        self.num_failed = 0

    @property
    def num_decoding_pixels(self) -> int:
        """Pixels of pictures in work or waiting for a thread; 0 when idle."""
        return self._pixels.num_used

    def is_crowding(self) -> bool:
        """Whether decoding leaves others one core at most. Any thread may ask."""
        return min(self.num_decoding, self._num_threads) >= self._num_cores - 1

    def memory_part(self) -> MemoryPart:
        """Pixels of pictures in work or waiting for a thread, three bytes each."""
        used, most = self._pixels.num_used, self._max_pixels
        return MemoryPart(name="pixels", kind="requests", used_bytes=3 * used, reserved_bytes=3 * most)

    async def prepare(
        self, item: MediaItem, preparer: ImagePreparer, clock: StageClock | None = None, index: int | None = None
    ) -> PreparedImage:
        """Decode an item and prepare it for the encoder.

        Safe to cancel: what has not begun is dropped, what runs ends unheard, and its pixels are counted until then.

        Args:
            item: With its bytes inline or in the spool; they are read off the event loop.
            preparer: Of the model that will encode it. Must be picklable for decoder processes.
            clock: Gets the spans 'decode_media' and 'prepare'.
            index: The item's position in its request, for spans. Errors name no item: several requests may wait.

        Raises:
            MediaError: The bytes are broken, of another size than the item states, or beyond a limit. Of decoder
                processes also: the decoder crashed, or took too long.
            TransferError: The spool does not have the bytes.
        """
        assert not isinstance(item.source, EmbeddingHandle | LateSource)  # an embedding: there is nothing to decode
        loop = asyncio.get_running_loop()
        self.num_decoding += 1
        try:
            share = await self._pixels.acquire(item.width * item.height)
        except BaseException:
            self.num_decoding -= 1
            raise

        def finish(future: Future[PreparedImage]) -> None:  # called once, also when the work never began
            with suppress(RuntimeError):  # the loop is closed: nobody waits for pixels any more
                loop.call_soon_threadsafe(self._finish, share, future)

        try:
            future = self._pool.submit(self._decode.decode, item, preparer, clock, index)
        except RuntimeError:  # closed meanwhile
            self._pixels.release(share)
            self.num_decoding -= 1
            raise
        future.add_done_callback(finish)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Drop what waits and let threads end after what they are at."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._decode.close()

    def _finish(self, share: int, future: Future[PreparedImage]) -> None:
        self._pixels.release(share)
        self.num_decoding -= 1
        if not future.cancelled():
            self.num_decoded += future.exception() is None
            self.num_failed += future.exception() is not None


class _Here:
    """In the calling thread itself."""

    def __init__(self, settings: MediaSettings) -> None:
        self._settings = settings

    def decode(
        self, item: MediaItem, preparer: ImagePreparer, clock: StageClock | None, index: int | None
    ) -> PreparedImage:
        assert not isinstance(item.source, EmbeddingHandle | LateSource)
        data = read_source(item.source, self._settings)
        timed = prepare_medium(data, Announced(item.width, item.height, item.video), preparer, self._settings)
        if clock is not None:
            clock.add("decode_media", timed.started - clock.start, timed.decoded - clock.start, index)
            clock.add("prepare", timed.decoded - clock.start, timed.ended - clock.start, index)
        return timed.prepared

    def close(self) -> None:
        """Nothing is held."""
