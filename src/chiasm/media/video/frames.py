"""Exactly the wanted frames of a video, with as little decoding as that takes.

Frames that nothing refers to are skipped by the decoder where they are not wanted themselves, which changes no other
frame, and stretches between wanted frames that hold a keyframe are jumped over. Either gives the same pixels as
decoding everything.
"""

from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import msgspec
import numpy as np

from chiasm.errors import MediaDecodeError
from chiasm.media.kernels.base import Pixels
from chiasm.media.kernels.registry import kernels
from chiasm.media.video.container import opened, video_border
from chiasm.media.video.header import VideoHeader, read_video_header
from chiasm.media.video.parallel import in_order, num_useful_threads, stretches
from chiasm.media.video.sampling import SamplingRule, sampled_indices
from chiasm.settings import MediaSettings

_BICUBIC = 3
_MAX_PIXEL_BYTES = 6
"""Of a decoder's frame, which is not converted yet: three planes of 16 bits at most."""

_ORIENTATIONS = {0: 1, 90: 8, 180: 3, 270: 6}
"""Counter-clockwise degrees that a file asks for, as EXIF orientations."""


class Frame(msgspec.Struct, frozen=True):
    """One frame, upright: its index among all frames, and when it is shown, from the first one."""

    index: int
    time_s: float
    pixels: Pixels


def sample_video(data: bytes, rule: SamplingRule, settings: MediaSettings) -> tuple[VideoHeader, Iterator[Frame]]:
    """Return the facts at once and the sampled frames as they are decoded. Blocks; closing the iterator ends it.

    Raises what `read_video_header` and `sampled_indices` raise; the iterator raises what `decoded_frames` raises.
    """
    header = read_video_header(data, settings)
    indices = sampled_indices(header.num_frames, header.average_fps, rule)
    return header, decoded_frames(data, header, indices, settings.video_threads)


def decoded_frames(
    data: bytes, header: VideoHeader, indices: Sequence[int], num_threads: int = 1
) -> Generator[Frame, None, None]:
    """Yield the frames of rising indices. All have the size of the first one.

    With more threads, stretches between keyframes are decoded side by side, and beside what becomes of earlier frames
    in the calling thread, their colours first; the frames are the same.

    Raises:
        MediaDecodeError: A wanted frame cannot be decoded.
    """
    wanted = {header.pts[index]: index for index in indices}
    size: tuple[int, int] | None = None
    with closing(_decoded(data, header, sorted(wanted), num_threads)) as found:
        for pts, frame in found:
            with video_border(header.codec):
                pixels = _upright(frame)
            size = size or (pixels.shape[1], pixels.shape[0])
            yield Frame(wanted[pts], header.time_s(wanted[pts]), kernels().resize(pixels, size, _BICUBIC))


def _decoded(
    data: bytes, header: VideoHeader, wanted: Sequence[int], num_threads: int
) -> Generator[tuple[int, Any], None, None]:
    """The decoder's own frame of each wanted pts, in order."""
    if num_threads == 1:
        return decoder_frames(data, header, [wanted])
    parts, frame_bytes = stretches(wanted, header.keyframe_pts), _MAX_PIXEL_BYTES * header.width * header.height
    return in_order(
        partial(decoder_frames, data, header), parts, frame_bytes, num_useful_threads(parts, frame_bytes, num_threads)
    )


def decoder_frames(
    data: bytes, header: VideoHeader, parts: Sequence[Sequence[int]]
) -> Generator[tuple[int, Any], None, None]:
    """Open the file once, and decode parts of rising pts one after the other: each pts with the decoder's own frame.

    Raises `MediaDecodeError` as `decoded_frames` does.
    """
    with opened(data) as container, video_border(header.codec):
        decoder = _Decoder(container, header)
        for part in parts:
            decoder.jump_to(part[0])
            yield from decoder.frames(part)


def _upright(frame: Any) -> Pixels:
    pixels: Pixels = frame.to_ndarray(format="rgb24")
    orientation = _ORIENTATIONS.get(int(frame.rotation) % 360)
    if orientation is None:
        raise MediaDecodeError(f"The video is to be turned by {frame.rotation} degrees; only quarter turns are done")
    # libav pads the rows of widths that are no multiple of eight
    return kernels().turn(np.ascontiguousarray(pixels), orientation)


class _Decoder:
    """Walks a container's packets once, from keyframe to keyframe."""

    def __init__(self, container: Any, header: VideoHeader) -> None:
        self._container = container
        self._header = header
        self._stream = next(s for s in container.streams.video if s.codec_context.codec.canonical_name == header.codec)
        self._stream.codec_context.thread_count = 1  # requests run side by side; packets are told apart one by one
        self._can_seek = True

    def jump_to(self, pts: int) -> None:
        """Go to the keyframe that decoding a frame begins with, unless that is where the file begins."""
        keyframe = self._keyframe(pts)
        if self._can_seek and keyframe > 0:
            self._seek(self._header.keyframe_pts[keyframe])

    def frames(self, wanted: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Yield (pts, frame) of each wanted pts, rising."""
        missing = list(wanted)
        while missing:
            num_missing = len(missing)
            for pts, frame in self._run(set(missing)):
                if pts != missing[0]:
                    break  # damaged, or jumped too far: the next frame did not come in its place
                del missing[0]
                yield pts, frame
                if missing and self._is_far(pts, missing[0]):
                    break
            if missing and len(missing) == num_missing:
                self._begin_again(missing[0])
            elif missing:
                self._seek(self._header.keyframe_pts[self._keyframe(missing[0])])

    def _keyframe(self, pts: int) -> int:
        """The last keyframe at or before a frame, as a position among keyframes; -1 where there is none."""
        return bisect_right(self._header.keyframe_pts, pts) - 1

    def _is_far(self, pts: int, wanted: int) -> bool:
        """Whether a keyframe between two frames spares decoding those before it."""
        return self._can_seek and self._keyframe(wanted) > self._keyframe(pts)

    def _begin_again(self, pts: int) -> None:
        """Without jumps this time: some files state their order too loosely for them, and then frames were missed."""
        if not self._can_seek:
            raise MediaDecodeError(f"The {self._header.codec} frame {self._header.pts.index(pts)} cannot be decoded")
        self._can_seek = False
        self._seek(self._header.pts[0])

    def _seek(self, pts: int) -> None:
        self._container.seek(pts, stream=self._stream, backward=True, any_frame=False)

    def _run(self, wanted: set[int]) -> Iterator[tuple[int, Any]]:
        context = self._stream.codec_context
        for packet in self._container.demux(self._stream):
            context.skip_frame = "DEFAULT" if packet.pts in wanted or packet.pts is None else "NONREF"
            for frame in packet.decode():
                if frame.pts in wanted:
                    wanted.discard(frame.pts)
                    yield frame.pts, frame
            if not wanted:
                return
