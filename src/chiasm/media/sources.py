"""Where a worker finds the encoded bytes of an item: in the item, or in the spool folder of its host."""

import os
import re
import stat
import tempfile
from pathlib import Path

from chiasm.errors import TransferError
from chiasm.protocol.media import InlineSource, SpoolSource
from chiasm.settings import MediaSettings
from chiasm.settings.paths import written_path

_MEMORY = Path("/dev/shm")  # noqa: S108 - what is made below it belongs to one user and is checked
_NAME = re.compile(r"[0-9a-z-]{1,128}")


def spool_folder(settings: MediaSettings) -> Path:
    """The spool folder of these settings: the one they name, or that of this user in memory."""
    if settings.spool_directory:
        return written_path(settings.spool_directory, "media.spool_directory")
    parent = _MEMORY if os.access(_MEMORY, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
    return parent / f"chiasm-spool-{os.geteuid()}"


def read_source(source: InlineSource | SpoolSource, settings: MediaSettings) -> bytes:
    """Return the encoded bytes of an item. Blocks.

    Raises:
        TransferError: The spool has no such file, not of this user, or not of the stated size: it was released,
            expired, or this is not the host that spooled it.
    """
    if isinstance(source, InlineSource):
        return source.data
    if _NAME.fullmatch(source.name) is None:  # whoever sent it, it cannot lead anywhere else
        raise TransferError("The name of a spool file is malformed")
    try:
        # Never follows a link, never waits on a pipe.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(spool_folder(settings) / source.name, flags)
    except OSError:
        raise _missing() from None
    try:
        return _read(descriptor, source.num_bytes)
    finally:
        os.close(descriptor)


def _read(descriptor: int, num_bytes: int) -> bytes:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        raise _missing()
    data = os.read(descriptor, num_bytes) if status.st_size == num_bytes else b""
    if len(data) != num_bytes:
        raise TransferError(f"The spool file of a medium has {status.st_size} bytes instead of {num_bytes}")
    return data


def _missing() -> TransferError:
    return TransferError("The spool no longer holds a medium of the request", hint="Send the request again")
