"""The one place that opens files with PyAV: the demuxer of the sniffed container and no other, errors without the data.

Needs the extra `video`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from types import ModuleType
from typing import TYPE_CHECKING, Any

from chiasm.errors import MediaDecodeError, MediaTooLargeError, MissingExtraError, UnsupportedMediaError

if TYPE_CHECKING:
    from av.container import InputContainer

_PROBE_BYTES = 5_000_000
_PROBE_US = 5_000_000


def load_av() -> ModuleType:
    """Import PyAV. Raises `MissingExtraError`."""
    try:
        import av  # noqa: PLC0415 - an extra
    except ImportError:
        raise MissingExtraError("Videos and audio need PyAV", hint="Install it: pip install 'chiasm[video]'") from None
    av.logging.set_level(None)  # its lines would quote callers' files
    return av


@contextmanager
def libav_border(what: str, hint: str) -> Iterator[None]:
    """Turn what the libraries raise on hostile data into a `MediaError`.

    `what` names the container or codec; `hint` says what to send where that cannot be decoded.
    """
    av = load_av()
    try:
        yield
    except MemoryError:
        raise MediaTooLargeError(f"Decoding the {what} data takes more memory than there is") from None
    except (av.error.DecoderNotFoundError, av.error.PatchWelcomeError):
        raise UnsupportedMediaError(f"This installation cannot decode {what}", hint=hint) from None
    except (av.FFmpegError, IndexError, UnicodeDecodeError):
        raise MediaDecodeError(f"The {what} data is broken or cut off") from None


@contextmanager
def opened_as(data: bytes, kind: str, demuxer: str, hint: str) -> Iterator["InputContainer"]:
    """Open a file of a sniffed kind with one demuxer, without decoding it.

    Raises:
        MediaDecodeError: Its headers are broken.
        MissingExtraError: PyAV is not installed.
    """
    options = {"probesize": str(_PROBE_BYTES), "analyzeduration": str(_PROBE_US)}
    with libav_border(kind, hint):
        container: Any = load_av().open(BytesIO(data), format=demuxer, options=options)
    with container:
        yield container
