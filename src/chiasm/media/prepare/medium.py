"""The decode and prepare stages of one item, timed; blocks its thread."""

import threading
import time
from collections.abc import Iterable, Iterator
from itertools import pairwise

import msgspec

from chiasm.errors import MediaDecodeError
from chiasm.media.kernels.base import Pixels
from chiasm.media.picture.decode import decode_announced, decode_resized
from chiasm.media.picture.room import Room
from chiasm.media.prepare.base import ImagePreparer, PreparedImage, ResizesFirst
from chiasm.media.prepare.items import video_preparer
from chiasm.media.video.frames import Frame, decoded_frames
from chiasm.media.video.header import read_video_header
from chiasm.protocol.media import VideoSample
from chiasm.settings import MediaSettings

_of_thread = threading.local()


class Announced(msgspec.Struct, frozen=True):
    """What the gateway found in the headers; `video` is None for a picture."""

    width: int
    height: int
    video: VideoSample | None = None


class Timed(msgspec.Struct, frozen=True):
    """A prepared medium, and times of `time.perf_counter()`. A video's two stages alternate; each is counted whole."""

    prepared: PreparedImage
    started: float
    decoded: float
    ended: float


def prepare_medium(data: bytes, announced: Announced, preparer: ImagePreparer, settings: MediaSettings) -> Timed:
    """Decode encoded bytes and prepare them for the encoder.

    Raises:
        MediaError: They are broken, beyond a limit, or other than announced.
    """
    if announced.video is not None:
        return _video(data, announced, announced.video, preparer, settings)
    started = time.perf_counter()
    size = announced.width, announced.height
    streamed = _streamed(data, size, preparer, settings, started)
    if streamed is not None:
        return streamed
    pixels = decode_announced(data, size, preparer.least_size(*size), settings, _threads_room())
    decoded = time.perf_counter()
    prepared = _outside(_threads_room(), preparer.prepare(pixels, size))
    return Timed(prepared, started, decoded, time.perf_counter())


def _streamed(
    data: bytes, size: tuple[int, int], preparer: ImagePreparer, settings: MediaSettings, started: float
) -> Timed | None:
    """Decode and resize in one go, where that can be done; the two stages alternate, and each is counted whole."""
    if not isinstance(preparer, ResizesFirst):
        return None
    plan, resizing = preparer.plan(*size), preparer.resizing(*size)
    found = None if resizing is None else decode_resized(data, size, resizing, settings)
    if found is None:
        return None
    prepared = preparer.prepare_resized(found.pixels, plan)
    return Timed(prepared, started, started + found.decoding_s, time.perf_counter())


def _threads_room() -> Room:
    room: Room | None = getattr(_of_thread, "room", None)
    if room is None:
        room = _of_thread.room = Room()
    return room


def _outside(room: Room, prepared: PreparedImage) -> PreparedImage:
    """With arrays of their own, where a preparer gives the pixels back as they are."""
    if not any(map(room.owns, prepared.arrays.values())):
        return prepared
    return PreparedImage(prepared.plan, {name: array.copy() for name, array in prepared.arrays.items()})


def _video(
    data: bytes, announced: Announced, sample: VideoSample, preparer: ImagePreparer, settings: MediaSettings
) -> Timed:
    videos = video_preparer(preparer)
    plan = videos.plan(announced.width, announced.height, sample)
    clock = _Alternating()
    header = read_video_header(data, settings)
    if header.num_frames != sample.num_frames or sample.indices[-1] >= header.num_frames:
        raise MediaDecodeError(f"The video has {header.num_frames} frames, announced were {sample.num_frames}")
    if any(after <= before for before, after in pairwise(sample.indices)):
        raise MediaDecodeError("The frames that are meant of the video are not in rising order")
    frames = clock.timed(decoded_frames(data, header, sample.indices, settings.video_threads))
    prepared = videos.prepare(_upright(frames, announced), plan)
    ended = time.perf_counter()
    return Timed(prepared, clock.started, clock.started + clock.source_s, ended)


def _upright(frames: Iterable[Frame], announced: Announced) -> Iterator[Pixels]:
    for frame in frames:
        height, width = frame.pixels.shape[:2]
        if (width, height) != (announced.width, announced.height):
            raise MediaDecodeError(
                f"Frames have {width} x {height} pixels, the video's header says {announced.width} x {announced.height}"
            )
        yield frame.pixels


class _Alternating:
    """How long an iterator takes for its own part."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.source_s = 0.0

    def timed(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        since = self.started
        for frame in frames:
            self.source_s += time.perf_counter() - since
            yield frame
            since = time.perf_counter()
        self.source_s += time.perf_counter() - since
