"""What `chiasm media check` says of a file or URL: verdict, facts, and how near the facts come to the limits."""

import msgspec

from chiasm.errors import ChiasmError
from chiasm.media.audio.header import AudioHeader
from chiasm.settings import MediaSettings


class Refusal(msgspec.Struct, frozen=True):
    """Why a medium was not taken, as a caller of the server would read it."""

    code: str
    cause: str
    hint: str | None


class Limit(msgspec.Struct, frozen=True):
    """One rule with a number: the setting, what it allows at most, and what this medium has."""

    setting: str
    most: float
    found: float


class PictureFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a picture. `width` and `height` are after EXIF rotation.

    `mode` is Pillow's name for the stored pixels. `mode` and `decode_s` are None when decoding failed, the counts of
    tiles and tokens without a model.
    """

    format: str
    width: int
    height: int
    orientation: int
    is_animated: bool
    num_bytes: int
    identity: str
    num_tiles: int | None = None
    num_visual_tokens: int | None = None
    num_prompt_tokens: int | None = None
    mode: str | None = None
    decode_s: float | None = None

    def limits(self, settings: MediaSettings) -> list[Limit]:
        """The rules that its numbers are held against."""
        found = [
            Limit("media.max_item_bytes", settings.max_item_bytes, self.num_bytes),
            Limit("media.max_item_pixels", settings.max_item_pixels, self.width * self.height),
            Limit("media.max_aspect_ratio", settings.max_aspect_ratio, _ratio(self.width, self.height)),
        ]
        if self.num_tiles:
            found.append(Limit("media.max_item_tiles", settings.max_item_tiles, self.num_tiles))
        return found + _token_limit(self.num_visual_tokens, settings)


class VideoReport(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a video. `width` and `height` are upright; `identity` names the bytes and the sampled frames.

    `codec` and `decode_s`, of the sampled frames, are None when decoding failed, the counts of tokens without a model.
    """

    container: str
    width: int
    height: int
    num_frames: int
    average_fps: float
    duration_s: float
    num_sampled: int
    num_bytes: int
    identity: str
    num_visual_tokens: int | None = None
    num_prompt_tokens: int | None = None
    codec: str | None = None
    decode_s: float | None = None

    def limits(self, settings: MediaSettings) -> list[Limit]:
        """The rules that its numbers are held against."""
        found = [
            Limit("media.max_item_bytes", settings.max_item_bytes, self.num_bytes),
            Limit("media.max_item_pixels", settings.max_item_pixels, self.width * self.height),
            Limit("media.max_aspect_ratio", settings.max_aspect_ratio, _ratio(self.width, self.height)),
            Limit("media.max_video_frames", settings.max_video_frames, self.num_frames),
            Limit("media.max_video_s", settings.max_video_s, self.duration_s),
        ]
        return found + _token_limit(self.num_visual_tokens, settings)


class AudioReport(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a piece of audio. `decode_s` is None when decoding failed."""

    container: str
    codec: str
    rate: int
    num_channels: int
    duration_s: float
    num_bytes: int
    identity: str
    decode_s: float | None = None

    @classmethod
    def of(cls, header: AudioHeader, num_bytes: int, identity: str) -> "AudioReport":
        """Say what headers and packets say."""
        return cls(
            container=header.container,
            codec=header.codec,
            rate=header.rate,
            num_channels=header.num_channels,
            duration_s=header.duration_s,
            num_bytes=num_bytes,
            identity=identity,
        )

    def limits(self, settings: MediaSettings) -> list[Limit]:
        """The rules that its numbers are held against."""
        return [
            Limit("media.max_item_bytes", settings.max_item_bytes, self.num_bytes),
            Limit("media.max_audio_s", settings.max_audio_s, self.duration_s),
            Limit("media.max_audio_channels", settings.max_audio_channels, self.num_channels),
        ]


Facts = PictureFacts | VideoReport | AudioReport


class MediaVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for one file or URL. Without facts it was refused before its header was known to be good.

    `source` is the path, or the URL without what may be secret: payload, credentials, query. `limits` are those that
    the facts were held against.
    """

    source: str
    is_accepted: bool
    refusal: Refusal | None = None
    picture: PictureFacts | None = None
    video: VideoReport | None = None
    audio: AudioReport | None = None
    limits: list[Limit] = []


def accepted(source: str, facts: Facts, settings: MediaSettings) -> MediaVerdict:
    """State that a medium would be taken."""
    return _verdict(source, facts, settings, None)


def refused(source: str, error: ChiasmError, facts: Facts | None, settings: MediaSettings) -> MediaVerdict:
    """State why a medium would not be taken; `facts` as far as they are known."""
    refusal = Refusal(error.code, error.message.removeprefix("Media item 0: "), error.hint)
    return _verdict(source, facts, settings, refusal)


def _verdict(source: str, facts: Facts | None, settings: MediaSettings, refusal: Refusal | None) -> MediaVerdict:
    return MediaVerdict(
        source=source,
        is_accepted=refusal is None,
        refusal=refusal,
        picture=facts if isinstance(facts, PictureFacts) else None,
        video=facts if isinstance(facts, VideoReport) else None,
        audio=facts if isinstance(facts, AudioReport) else None,
        limits=[] if facts is None else facts.limits(settings),
    )


def _ratio(width: int, height: int) -> float:
    return max(width, height) / min(width, height)


def _token_limit(num_tokens: int | None, settings: MediaSettings) -> list[Limit]:
    return [] if num_tokens is None else [Limit("media.max_visual_tokens", settings.max_visual_tokens, num_tokens)]
