"""What encoded bytes are, from their headers: a picture's facts, or a video's and which of its frames are meant."""

import time
from collections.abc import Callable
from fractions import Fraction
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from chiasm.errors import MissingExtraError, UnsupportedMediaError
from chiasm.media.audio.header import AudioHeader, read_audio_header
from chiasm.media.identity import video_identity
from chiasm.media.picture.header import Header, read_header
from chiasm.media.prepare.base import VideoPreparer
from chiasm.media.reference import MediaReference
from chiasm.media.video.header import VideoHeader, read_video_header
from chiasm.media.video.sampling import SamplingRule, sampled_indices
from chiasm.protocol.media import MediaKind, VideoSample
from chiasm.settings import MediaSettings


class Inspected(msgspec.Struct, frozen=True, kw_only=True):
    """`width` and `height` are upright, 0 of audio. `check_s` is what finding out took."""

    kind: MediaKind | Literal["audio"] = "image"
    identity: str
    format: str
    width: int
    height: int
    is_animated: bool = False
    video: VideoSample | None = None
    check_s: float
    header: Header | None = None
    audio: AudioHeader | None = None


class VideoFacts(msgspec.Struct, frozen=True, kw_only=True, tag="video_facts"):
    """What a video's headers and packets say. `width` and `height` are upright."""

    container: Annotated[str, Meta(max_length=16)]
    width: Annotated[int, Meta(ge=1)]
    height: Annotated[int, Meta(ge=1)]
    sample: VideoSample


Inspect = Callable[[bytes, str], Inspected]
"""Encoded bytes and their `content_identity` to what they are."""
ReadPicture = Callable[[bytes], Header]
ReadAudio = Callable[[bytes], AudioHeader]
ReadVideo = Callable[[bytes, SamplingRule], VideoFacts]
"""Blocks, and raises `MediaError`; where decoder processes do it, `EngineError` too."""


def inspect_picture(data: bytes, content: str, read: ReadPicture = read_header) -> Inspected:
    """Read a picture's header. Raises what `read` raises."""
    started = time.perf_counter()
    header = read(data)
    return Inspected(
        identity=content,
        format=header.format,
        width=header.width,
        height=header.height,
        is_animated=header.is_animated,
        check_s=time.perf_counter() - started,
        header=header,
    )


def inspect_audio(data: bytes, content: str, read: ReadAudio) -> Inspected:
    """Read the headers of a piece of audio. Raises what `read` raises."""
    started = time.perf_counter()
    found = read(data)
    return Inspected(
        kind="audio",
        identity=content,
        format=found.container,
        width=0,
        height=0,
        check_s=time.perf_counter() - started,
        audio=found,
    )


def read_audio_facts(data: bytes, settings: MediaSettings) -> AudioHeader:
    """Read the headers of a piece of audio. Blocks.

    Raises what `read_audio_header` raises, but `UnsupportedMediaError` where audio cannot be read at all.
    """
    try:
        return read_audio_header(data, settings)
    except MissingExtraError:
        raise _missing("audio") from None


def read_video_facts(data: bytes, rule: SamplingRule, settings: MediaSettings) -> VideoFacts:
    """Read a video's packets and choose frames. Blocks.

    Raises what `read_video_header` and `sampled_indices` raise, but `UnsupportedMediaError` where videos cannot be read
    at all.
    """
    try:
        header = read_video_header(data, settings)
    except MissingExtraError:
        raise _missing("videos") from None
    width, height = header.upright_size
    return VideoFacts(container=header.container, width=width, height=height, sample=sample_of(header, rule))


def video_inspector(reference: MediaReference, read: ReadVideo, videos: VideoPreparer | None) -> Inspect:
    """Make what reads a video's packets and chooses frames, without a preparer by the rule of Qwen2-VL.

    It blocks, and raises what `read` raises.
    """
    asked = reference.fps, reference.num_frames
    rule = _plain_rule(*asked) if videos is None else videos.rule(*asked)

    def inspect(data: bytes, content: str) -> Inspected:
        started = time.perf_counter()
        facts = read(data, rule)
        return Inspected(
            kind="video",
            identity=video_identity(content, facts.sample),
            format=facts.container,
            width=facts.width,
            height=facts.height,
            video=facts.sample,
            check_s=time.perf_counter() - started,
        )

    return inspect


def _missing(what: str) -> UnsupportedMediaError:
    return UnsupportedMediaError(
        f"This server cannot read {what}", hint="Its operator may install that: pip install 'chiasm[video]'"
    )


def _plain_rule(fps: float | None, num_frames: int | None) -> SamplingRule:
    if num_frames is not None:
        return SamplingRule(fps=None, num_frames=num_frames)
    return SamplingRule() if fps is None else SamplingRule(fps=fps)


def sample_of(header: VideoHeader, rule: SamplingRule) -> VideoSample:
    """Choose frames of a video. Raises what `sampled_indices` raises."""
    fps = exact_fps(header)
    indices = sampled_indices(header.num_frames, fps, rule)
    return VideoSample(num_frames=header.num_frames, fps=fps, indices=tuple(indices))


def exact_fps(header: VideoHeader) -> float:
    """Average frames per second, rounded once: 24 is 24, so that times are written as the model's processor does."""
    ticks = header.pts[-1] - header.pts[0]
    if not ticks:
        return 0.0
    return float((header.num_frames - 1) / (ticks * Fraction(header.time_base_s).limit_denominator(10**9)))
