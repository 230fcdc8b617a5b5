"""The one place that opens videos: the demuxer of the sniffed container and no other, errors without the data."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from types import ModuleType
from typing import TYPE_CHECKING, Any

from chiasm.errors import MediaDecodeError, MediaTooLargeError, MissingExtraError, UnsupportedMediaError

if TYPE_CHECKING:
    from av.container import InputContainer

_DEMUXERS = {"mp4": "mov", "matroska": "matroska"}
_PROBE_BYTES = 5_000_000
_PROBE_US = 5_000_000
SNIFF_BYTES = 32
_EBML = b"\x1a\x45\xdf\xa3"


def sniff_video(head: bytes | bytearray) -> str | None:
    """Return "mp4" (QuickTime too), "matroska" (WebM too) or None, from the first bytes."""
    if bytes(head[4:8]) in (b"ftyp", b"moov", b"wide", b"mdat") and bytes(head[8:12]) not in (b"avif", b"avis"):
        return "mp4"
    return "matroska" if head.startswith(_EBML) else None


def require_video(head: bytes | bytearray) -> str:
    """Return what `sniff_video` finds. Raises `UnsupportedMediaError` for None."""
    kind = sniff_video(head[:SNIFF_BYTES])
    if kind is None:
        raise UnsupportedMediaError("The data is no video of a supported container", hint="Send MP4, MOV, WebM or MKV")
    return kind


def load_av() -> ModuleType:
    """Import PyAV. Raises `MissingExtraError`."""
    try:
        import av  # noqa: PLC0415 - an extra
    except ImportError:
        raise MissingExtraError("Videos need PyAV", hint="Install it: pip install 'chiasm[video]'") from None
    av.logging.set_level(None)  # its lines would quote callers' files
    return av


@contextmanager
def video_border(what: str) -> Iterator[None]:
    """Turn what the libraries raise on hostile data into a `MediaError`; `what` names the container or codec."""
    av = load_av()
    try:
        yield
    except MemoryError:
        raise MediaTooLargeError(f"Decoding the {what} data takes more memory than there is") from None
    except (av.error.DecoderNotFoundError, av.error.PatchWelcomeError):
        raise UnsupportedMediaError(f"This installation cannot decode {what}", hint="Send H.264, VP9 or AV1") from None
    except (av.FFmpegError, IndexError, UnicodeDecodeError):
        raise MediaDecodeError(f"The {what} data is broken or cut off") from None


@contextmanager
def opened(data: bytes) -> Iterator["InputContainer"]:
    """Open a video without decoding it.

    Raises:
        UnsupportedMediaError: Not a container that is taken.
        MediaDecodeError: Its headers are broken.
        MissingExtraError: PyAV is not installed.
    """
    kind = require_video(data)
    options = {"probesize": str(_PROBE_BYTES), "analyzeduration": str(_PROBE_US)}
    with video_border(kind):
        container: Any = load_av().open(BytesIO(data), format=_DEMUXERS[kind], options=options)
    with container:
        yield container
