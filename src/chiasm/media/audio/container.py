"""Which containers and codecs are taken as audio, by their first bytes."""

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from chiasm.errors import UnsupportedMediaError
from chiasm.media.libav import libav_border, opened_as

if TYPE_CHECKING:
    from av.container import InputContainer

SNIFF_BYTES = 32
_HINT = "Send WAV, MP3, FLAC or Ogg"
_CODECS = {
    "wav": ("pcm_u8", "pcm_s16le", "pcm_s24le", "pcm_s32le", "pcm_f32le", "pcm_f64le", "pcm_alaw", "pcm_mulaw"),
    "mp3": ("mp3",),
    "flac": ("flac",),
    "ogg": ("vorbis", "opus", "flac"),
}
"""By canonical names. A container may name any codec of the library; no other is ever given the data."""


def sniff_audio(head: bytes | bytearray) -> str | None:
    """Return "wav", "mp3", "flac", "ogg" or None, from the first bytes."""
    if head.startswith(b"RIFF") and bytes(head[8:12]) == b"WAVE":
        return "wav"
    if head.startswith(b"fLaC"):
        return "flac"
    if head.startswith(b"OggS"):
        return "ogg"
    return "mp3" if head.startswith(b"ID3") or _is_mp3_frame(head) else None


def _is_mp3_frame(head: bytes | bytearray) -> bool:
    """Whether a frame of layer III begins here: sync, a version that exists, a bit rate and a sample rate."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE6 != 0xE2:
        return False
    return head[1] & 0x18 != 0x08 and head[2] >> 4 not in (0, 15) and head[2] & 0x0C != 0x0C


def require_audio(head: bytes | bytearray) -> str:
    """Return what `sniff_audio` finds. Raises `UnsupportedMediaError` for None."""
    kind = sniff_audio(head[:SNIFF_BYTES])
    if kind is None:
        raise UnsupportedMediaError("The data is no audio of a supported format", hint=_HINT)
    return kind


def require_codec(kind: str, codec: str) -> None:
    """Raise `UnsupportedMediaError` for a codec that a container of this kind is not taken with."""
    if codec not in _CODECS[kind]:
        raise UnsupportedMediaError(f"The {kind} data is coded as {codec}, which is not taken", hint=_HINT)


def audio_border(what: str) -> AbstractContextManager[None]:
    """Turn what the libraries raise on hostile data into a `MediaError`; `what` names the container or codec."""
    return libav_border(what, _HINT)


def opened_audio(data: bytes) -> AbstractContextManager["InputContainer"]:
    """Open audio without decoding it.

    Raises:
        UnsupportedMediaError: Not a format that is taken.
        MediaDecodeError: Its headers are broken.
        MissingExtraError: PyAV is not installed.
    """
    kind = require_audio(data)
    return opened_as(data, kind, kind, _HINT)
