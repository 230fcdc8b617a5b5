"""The verdicts of `chiasm media check` as lines for people."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chiasm.media.verdict import AudioReport, Limit, MediaVerdict, PictureFacts, VideoReport


def verdict_lines(verdict: "MediaVerdict") -> "Iterator[str]":
    """Say whether it would be taken, why not and what to do, what it is, and what it was held against."""
    refusal, facts = verdict.refusal, verdict.picture or verdict.video or verdict.audio
    yield f"{verdict.source}: " + ("accepted" if refusal is None else f"refused, {refusal.code}")
    if refusal is not None:
        yield refusal.cause
        if refusal.hint:
            yield refusal.hint
    if verdict.picture is not None:
        yield ", ".join(_picture_words(verdict.picture))
    if verdict.video is not None:
        yield ", ".join(_video_words(verdict.video))
    if verdict.audio is not None:
        yield ", ".join(_audio_words(verdict.audio))
        yield "no model that is served here takes audio: in a request it is refused all the same"
    if facts is not None:
        yield "limits: " + ", ".join(map(_limit_words, verdict.limits))
        yield f"identity {facts.identity}"


def _picture_words(picture: "PictureFacts") -> "Iterator[str]":
    yield f"{picture.format} {picture.width}x{picture.height}"
    if picture.mode is not None:
        yield picture.mode
    if picture.orientation != 1:
        yield f"turned by EXIF orientation {picture.orientation}"
    if picture.is_animated:
        yield "animated"
    yield f"{picture.num_bytes} bytes"
    yield from _cost_words(picture)


def _video_words(video: "VideoReport") -> "Iterator[str]":
    yield (video.container if video.codec is None else f"{video.codec} in {video.container}")
    yield f"{video.width}x{video.height}"
    yield f"{video.num_frames} frames in {video.duration_s:.2f} s"
    yield f"{video.num_sampled} of them looked at"
    yield f"{video.num_bytes} bytes"
    yield from _cost_words(video)


def _audio_words(audio: "AudioReport") -> "Iterator[str]":
    yield f"{audio.codec} in {audio.container}"
    yield f"{audio.rate} samples/s, {audio.num_channels} channel" + ("" if audio.num_channels == 1 else "s")
    yield f"{audio.duration_s:.2f} s, {audio.num_bytes} bytes"
    if audio.decode_s is not None:
        yield f"decoded in {audio.decode_s * 1000:.1f} ms"


def _cost_words(facts: "PictureFacts | VideoReport") -> "Iterator[str]":
    if facts.decode_s is not None:
        yield f"decoded in {facts.decode_s * 1000:.1f} ms"
    if facts.num_visual_tokens is not None:
        yield f"{facts.num_visual_tokens} visual tokens, {facts.num_prompt_tokens} in the prompt"


def _limit_words(limit: "Limit") -> str:
    return f"{limit.setting.removeprefix('media.')} {limit.found:.6g} of {limit.most:.6g}"
