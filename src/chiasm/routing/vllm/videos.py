"""Videos for servers of vLLM: which frames they see is decided, and done, here.

vLLM would choose and decode frames in its own way. A server that loads Chiasm's media connector takes them as a file of
pixels instead, already of the size that the model sees: nothing is left to be chosen, resized or decoded there.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

import msgspec

from chiasm.errors import DeadlineExceededError, UnsupportedMediaError
from chiasm.media.decoding import PictureDecoder
from chiasm.media.item_errors import naming_item
from chiasm.media.prepare.base import ImagePreparer, PreparedImage
from chiasm.media.prepare.items import video_preparer
from chiasm.media.spool import Spool, SpoolLease
from chiasm.media.video.packed import PACKED_FORMAT, PackedVideo, pack_video
from chiasm.media.video.sampling import FPS_UNKNOWN
from chiasm.observability.receipt import Span, StageClock
from chiasm.protocol.generation import GenerateRequest
from chiasm.protocol.media import EmbeddingHandle, InlineSource, LateSource, MediaItem, SpoolSource
from chiasm.protocol.worker import EncodeRequest
from chiasm.routing.vllm.model import ServedModel
from chiasm.routing.vllm.versions.base import Version

Call = TypeVar("Call", EncodeRequest, GenerateRequest)


class VideoFrames:
    """Decodes videos for calls. Belongs to one event loop; `close` when done.

    Limits on what is decoded at once, and whether processes do it, are those of `PictureDecoder`.
    """

    def __init__(self, decoder: PictureDecoder, preparer: ImagePreparer, spool: Spool | None) -> None:
        """Take who decodes, the model's preparer and, where servers read it, the spool."""
        self._decoder = decoder
        self._preparer = preparer
        self._spool = spool

    @asynccontextmanager
    async def given(
        self, items: tuple[MediaItem, ...], timeout_s: float, clock: StageClock
    ) -> AsyncIterator[tuple[MediaItem, ...]]:
        """The items, with frames in place of videos; those in the spool are held for as long as the block lasts.

        Args:
            items: Of one call. Pictures, and videos that are encoded already, stay as they are.
            timeout_s: What the call may take.
            clock: Gets the spans 'decode_media' and 'prepare'.

        Raises:
            MediaError: A video is broken or not as its header says; with its item.
            OverloadedError: The spool is full.
            DeadlineExceededError: `timeout_s` passed.
        """
        async with AsyncExitStack() as closing:
            lease = None if self._spool is None else closing.enter_context(self._spool.lease())
            try:
                async with asyncio.timeout(timeout_s):
                    found = await self._all(items, clock, lease)
            except TimeoutError:
                raise DeadlineExceededError(f"The videos of the request took longer than {timeout_s:.3g} s") from None
            yield found

    async def _all(
        self, items: tuple[MediaItem, ...], clock: StageClock, lease: SpoolLease | None
    ) -> tuple[MediaItem, ...]:
        made: dict[str, MediaItem] = {}
        for index, item in enumerate(items):
            if is_encoded_video(item) and item.identity not in made:
                with naming_item(index):
                    made[item.identity] = await self._one(item, index, clock, lease)
        return tuple(made.get(item.identity, item) if is_encoded_video(item) else item for item in items)

    async def _one(self, item: MediaItem, index: int, clock: StageClock, lease: SpoolLease | None) -> MediaItem:
        prepared = await self._decoder.prepare(item, self._preparer, clock, index)
        source = await asyncio.to_thread(self._written, item, prepared, lease)
        return msgspec.structs.replace(item, format=PACKED_FORMAT, source=source)

    def _written(
        self, item: MediaItem, prepared: PreparedImage, lease: SpoolLease | None
    ) -> InlineSource | SpoolSource:
        assert item.video is not None, "what is decoded has been sampled"
        frames = video_preparer(self._preparer).frames(prepared, len(item.video.indices))
        sample = msgspec.structs.replace(item.video, fps=item.video.fps or FPS_UNKNOWN)
        data = pack_video(PackedVideo(sample, frames))
        return InlineSource(data) if lease is None else lease.hold(f"{item.identity}-frames", data)

    def close(self) -> None:
        """Drop what waits for a thread."""
        self._decoder.close()


def is_encoded_video(item: MediaItem) -> bool:
    """Whether an item is a video whose frames are still to be decoded."""
    return item.kind == "video" and not isinstance(item.source, EmbeddingHandle | LateSource)


def check_encodable(item: MediaItem, model: ServedModel, version: Version) -> None:
    """Look at an item that is to be encoded for other servers.

    Raises:
        MediaError: It must not be sent, or what vLLM hands over of it would not be enough for them.
    """
    model.plan(item)
    if item.kind == "video" and not version.hands_videos_over(model.family):
        raise UnsupportedMediaError(
            f"vLLM {version.name} does not hand over the times of this model's videos",
            hint="Serve the model with --topology agg, send frames as pictures, or use the embedded engine",
        )


@asynccontextmanager
async def with_frames(
    request: Call, videos: VideoFrames | None, server: str
) -> AsyncIterator[tuple[Call, Sequence[Span]]]:
    """The call as it is sent, with the time that it has then, and what came before it.

    Raises what `VideoFrames.given` raises, and `UnsupportedMediaError` for a server that is not known to take frames.
    """
    index = next((index for index, item in enumerate(request.items) if is_encoded_video(item)), None)
    if index is None:
        yield request, ()
        return
    if videos is None:
        raise UnsupportedMediaError(
            f"Media item {index}: the vLLM server '{server}' is not known to take frames of videos",
            hint="Start it with VLLM_MEDIA_CONNECTOR=chiasm, as `chiasm worker` does, and write videos = true into its "
            "entry of the workers' file; or send frames as pictures",
            item=index,
        )
    clock = StageClock()
    async with videos.given(request.items, request.timeout_s, clock) as items:
        left_s = request.timeout_s - clock.now_s()
        if left_s <= 0:
            raise DeadlineExceededError("The request's deadline passed while its videos were decoded")
        yield msgspec.structs.replace(request, items=items, timeout_s=left_s), clock.spans
