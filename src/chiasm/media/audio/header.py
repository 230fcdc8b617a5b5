"""Facts of a piece of audio before anything is decoded: headers, then a walk over its packets."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from chiasm.errors import MediaDecodeError, MediaTooLargeError, UnsupportedMediaError
from chiasm.media.audio.container import audio_border, opened_audio, require_audio, require_codec
from chiasm.settings import MediaSettings

_MAX_RATE = 384_000
_MIN_RATE = 1000
_MAX_PACKETS_PER_S = 400
_CUT_OFF_SHARE = 0.99


class AudioHeader(msgspec.Struct, frozen=True, kw_only=True, tag="audio_header"):
    """What headers and packets say. `num_samples` are of one channel, counted from the packets that are there."""

    container: Annotated[str, Meta(max_length=16)]
    codec: Annotated[str, Meta(max_length=32)]
    rate: Annotated[int, Meta(ge=1)]
    num_channels: Annotated[int, Meta(ge=1)]
    num_samples: Annotated[int, Meta(ge=1)]

    @property
    def duration_s(self) -> float:
        """How long it plays."""
        return self.num_samples / self.rate


def read_audio_header(data: bytes, settings: MediaSettings) -> AudioHeader:
    """Return the facts, within the limits of the settings. Demuxes packets, decodes none.

    Raises:
        UnsupportedMediaError: Not a supported format, no audio in it, or a codec that is not taken, which is named.
        MediaTooLargeError: Too many channels, samples in a second, or seconds.
        MediaDecodeError: Broken, cut off, or without a sample.
        MissingExtraError: PyAV is not installed.
    """
    kind = require_audio(data)
    with opened_audio(data) as container:
        stream = audio_stream(container)
        codec = _codec_name(kind, stream)
        rate, num_channels = stream.codec_context.sample_rate or 0, stream.codec_context.channels
        _check_shape(rate, num_channels, settings)
        with audio_border(codec):
            num_samples = _num_samples(container, stream, rate, settings)
        stated = (stream.duration or 0) * float(stream.time_base) * rate if kind == "flac" else 0
    if num_samples < 1:
        raise MediaDecodeError(f"The {codec} audio holds no sample")
    if num_samples < stated * _CUT_OFF_SHARE:
        raise MediaDecodeError(f"The {codec} audio is cut off: it holds {num_samples} of {round(stated)} samples")
    return AudioHeader(container=kind, codec=codec, rate=rate, num_channels=num_channels, num_samples=num_samples)


def audio_stream(container: Any) -> Any:
    """The first stream of audio. Raises `UnsupportedMediaError`."""
    if not container.streams.audio:
        raise UnsupportedMediaError("The file holds no audio", hint="Send WAV, MP3, FLAC or Ogg")
    return container.streams.audio[0]


def check_duration(num_samples: int, rate: int, settings: MediaSettings) -> None:
    """Raise `MediaTooLargeError` for more seconds than the settings allow."""
    if num_samples > settings.max_audio_s * rate:
        raise MediaTooLargeError(
            f"The audio lasts longer than the limit of {settings.max_audio_s:g} s", hint="Send a shorter piece of it"
        )


def _codec_name(kind: str, stream: Any) -> str:
    context = stream.codec_context
    if context is None:
        raise UnsupportedMediaError(f"The {kind} data is of an unknown codec", hint="Send WAV, MP3, FLAC or Ogg")
    name = str(context.codec.canonical_name)
    require_codec(kind, name)
    return name


def _check_shape(rate: int, num_channels: int, settings: MediaSettings) -> None:
    if rate < 1 or num_channels < 1:
        raise MediaDecodeError("The audio does not state its rate and channels")
    if num_channels > settings.max_audio_channels:
        raise MediaTooLargeError(
            f"The audio has {num_channels} channels; the limit is {settings.max_audio_channels}",
            hint="Send it with one or two; the model hears one anyway",
        )
    if not _MIN_RATE <= rate <= _MAX_RATE:
        raise MediaTooLargeError(
            f"The audio has {rate} samples in a second; {_MIN_RATE} to {_MAX_RATE} are taken",
            hint="Send it at 16000 or 48000",
        )


def _num_samples(container: Any, stream: Any, rate: int, settings: MediaSettings) -> int:
    ticks, time_base = 0, stream.time_base
    most = settings.max_audio_s * _MAX_PACKETS_PER_S + _MAX_PACKETS_PER_S
    for number, packet in enumerate(container.demux(stream)):
        if number > most:
            raise MediaTooLargeError("The audio is cut into too many pieces", hint="Send a shorter piece of it")
        ticks += max(packet.duration or 0, 0) if packet.size else 0
        check_duration(int(ticks * time_base * rate), rate, settings)
    return int(ticks * time_base * rate)
