"""A video's facts before anything is decoded: headers, then a walk over its packets."""

from typing import Any

import msgspec

from chiasm.errors import MediaDecodeError, MediaTooLargeError, UnsupportedMediaError
from chiasm.media.video.container import opened, sniff_video, video_border
from chiasm.media.video.rotation import is_sideways
from chiasm.settings import MediaSettings

_SLACK_PACKETS = 16


class VideoHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What headers and packets say. The size is as stored, before rotation.

    Attributes:
        pts: Of every frame, in the order in which they are shown, in units of `time_base_s`.
        keyframe_pts: Of those that decoding can begin with.
        is_sideways: Whether the file asks for a quarter turn, as far as its headers tell.
    """

    container: str
    codec: str
    width: int
    height: int
    time_base_s: float
    pts: tuple[int, ...]
    keyframe_pts: tuple[int, ...]
    is_sideways: bool = False

    @property
    def upright_size(self) -> tuple[int, int]:
        """Width and height after rotation."""
        return (self.height, self.width) if self.is_sideways else (self.width, self.height)

    @property
    def num_frames(self) -> int:
        """Frames that are there, whatever the headers claim."""
        return len(self.pts)

    @property
    def duration_s(self) -> float:
        """From the first frame to the end of the last one, which is taken to last as long as the average."""
        if self.num_frames < 2:
            return 0.0
        return (self.pts[-1] - self.pts[0]) * self.time_base_s * self.num_frames / (self.num_frames - 1)

    @property
    def average_fps(self) -> float:
        """Frames per second over all of it; 0 for a single frame."""
        return self.num_frames / self.duration_s if self.duration_s else 0.0

    def time_s(self, index: int) -> float:
        """When a frame is shown, counted from the first one."""
        return (self.pts[index] - self.pts[0]) * self.time_base_s


def read_video_header(data: bytes, settings: MediaSettings) -> VideoHeader:
    """Return the facts, within the limits of the settings. Demuxes all packets, decodes none.

    Raises:
        UnsupportedMediaError: Not a supported container, only sound, or a codec without a decoder, which is named.
        MediaTooLargeError: Too many pixels in a frame, frames, or seconds.
        MediaDecodeError: Broken, cut off, or without a frame.
        MissingExtraError: PyAV is not installed.
    """
    with opened(data) as container:
        stream = _video_stream(container)
        codec = _codec_name(stream)
        width, height = stream.codec_context.width, stream.codec_context.height
        _check_size(width, height, settings)
        with video_border(codec):
            packets = _packets(container, stream, settings)
        time_base_s, track_id = float(stream.time_base), int(stream.id)
    if not packets:
        raise MediaDecodeError(f"The {codec} video holds no frame")
    header = VideoHeader(
        container=sniff_video(data[:32]) or "",
        codec=codec,
        width=width,
        height=height,
        time_base_s=time_base_s,
        pts=tuple(sorted({pts for pts, _ in packets})),
        keyframe_pts=tuple(sorted({pts for pts, is_key in packets if is_key})),
        is_sideways=is_sideways(data, track_id),
    )
    if header.duration_s > settings.max_video_s:
        raise MediaTooLargeError(
            f"The video lasts {header.duration_s:.0f} s; the limit is {settings.max_video_s:g} s",
            hint="Send a shorter piece of it",
        )
    return header


def _video_stream(container: Any) -> Any:
    moving = [stream for stream in container.streams.video if not _is_cover(stream)]
    if moving:
        return moving[0]
    has_sound = bool(container.streams.audio)
    raise UnsupportedMediaError(
        "The file holds sound but no video" if has_sound else "The file holds no video", hint="Send a video"
    )


def _is_cover(stream: Any) -> bool:
    return bool(int(stream.disposition) & 0x400)  # a picture attached to a piece of music


def _codec_name(stream: Any) -> str:
    context = stream.codec_context
    if context is None or not context.codec.is_decoder:
        name = "an unknown codec" if context is None else context.name
        raise UnsupportedMediaError(
            f"The video is coded as {name}, which this installation cannot decode", hint="Send H.264, VP9 or AV1"
        )
    return str(context.codec.canonical_name)


def _check_size(width: int, height: int, settings: MediaSettings) -> None:
    if width < 1 or height < 1:
        raise MediaDecodeError("The video does not state the size of its frames")
    if width * height > settings.max_item_pixels:
        raise MediaTooLargeError(
            f"A frame of the video has {width} x {height} pixels; the limit is {settings.max_item_pixels}",
            hint="Send a smaller video; the model sees a reduced one anyway",
        )
    if max(width, height) > settings.max_aspect_ratio * min(width, height):
        raise MediaTooLargeError(f"The video is {width} x {height}: its sides differ too much")


def _packets(container: Any, stream: Any, settings: MediaSettings) -> list[tuple[int, bool]]:
    found: list[tuple[int, bool]] = []
    for number, packet in enumerate(container.demux(stream)):
        if number > settings.max_video_frames + _SLACK_PACKETS or len(found) > settings.max_video_frames:
            raise MediaTooLargeError(
                f"The video has more than {settings.max_video_frames} frames", hint="Send a shorter piece of it"
            )
        if packet.pts is not None and packet.size and not packet.is_discard:
            found.append((packet.pts, packet.is_keyframe))
    return found
