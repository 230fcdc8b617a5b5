"""Which containers are taken as videos, by their first bytes."""

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from chiasm.errors import UnsupportedMediaError
from chiasm.media.libav import libav_border, opened_as
from chiasm.media.picture.sniff import is_boxed_picture

if TYPE_CHECKING:
    from av.container import InputContainer

SNIFF_BYTES = 32
_DEMUXERS = {"mp4": "mov", "matroska": "matroska"}
_EBML = b"\x1a\x45\xdf\xa3"
_HINT = "Send H.264, VP9 or AV1"


def sniff_video(head: bytes | bytearray) -> str | None:
    """Return "mp4" (QuickTime too), "matroska" (WebM too) or None, from the first bytes."""
    if bytes(head[4:8]) in (b"ftyp", b"moov", b"wide", b"mdat") and not is_boxed_picture(head):
        return "mp4"
    return "matroska" if head.startswith(_EBML) else None


def require_video(head: bytes | bytearray) -> str:
    """Return what `sniff_video` finds. Raises `UnsupportedMediaError` for None."""
    kind = sniff_video(head[:SNIFF_BYTES])
    if kind is None:
        raise UnsupportedMediaError("The data is no video of a supported container", hint="Send MP4, MOV, WebM or MKV")
    return kind


def video_border(what: str) -> AbstractContextManager[None]:
    """Turn what the libraries raise on hostile data into a `MediaError`; `what` names the container or codec."""
    return libav_border(what, _HINT)


def opened(data: bytes) -> AbstractContextManager["InputContainer"]:
    """Open a video without decoding it.

    Raises:
        UnsupportedMediaError: Not a container that is taken.
        MediaDecodeError: Its headers are broken.
        MissingExtraError: PyAV is not installed.
    """
    kind = require_video(data)
    return opened_as(data, kind, _DEMUXERS[kind], _HINT)
