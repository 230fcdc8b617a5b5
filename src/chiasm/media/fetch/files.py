"""Local files below one allowed folder."""

import os
import stat
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

from chiasm.errors import MediaFetchError, MediaRefusedError, MediaTooLargeError

_OUTSIDE = "The file is not below the allowed folder"
_MISSING = "There is no readable regular file at this path"


def read_file(url: str, allowed_root: str | None, max_bytes: int) -> bytes:
    """Return the content of a regular file named by a file URL. Blocks.

    Symbolic links are followed first and judged by where they end, again after opening, so that a path swapped in
    between is caught. Paths outside give one answer whether or not something is there.

    Raises:
        MediaRefusedError: No folder is allowed, or the path leads outside of it.
        MediaFetchError: Nothing readable there, or not a regular file.
        MediaTooLargeError: More than `max_bytes`.
    """
    if allowed_root is None:
        raise MediaRefusedError("file:// URLs are not served here", hint="Send the picture as a data URL")
    root = Path(allowed_root).resolve()
    path = _path(url)
    try:
        resolved = path.resolve()
    except (OSError, RuntimeError):  # a loop of links
        raise MediaRefusedError(_OUTSIDE) from None
    if not resolved.is_relative_to(root):
        raise MediaRefusedError(_OUTSIDE)
    try:
        # Never waits on a pipe, never follows a link that appeared after the check.
        descriptor = os.open(resolved, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        raise MediaFetchError(_MISSING) from None
    try:
        return _read(descriptor, root, max_bytes)
    finally:
        os.close(descriptor)


def _path(url: str) -> Path:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise MediaRefusedError("The file URL is malformed") from None
    if parts.netloc not in ("", "localhost") or parts.query or "#" in url:
        raise MediaRefusedError("A file URL names no host, query or fragment", hint="Write file:///path/to/picture.png")
    raw = unquote_to_bytes(parts.path)
    if b"\0" in raw or not raw.startswith(b"/"):
        raise MediaRefusedError("The file URL is malformed", hint="Write file:///path/to/picture.png")
    return Path(os.fsdecode(raw))


def _read(descriptor: int, root: Path, max_bytes: int) -> bytes:
    if not Path(os.readlink(f"/proc/self/fd/{descriptor}")).is_relative_to(root):  # noqa: PTH115 - a magic link
        raise MediaRefusedError(_OUTSIDE)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise MediaFetchError(_MISSING)
    if status.st_size > max_bytes:
        raise MediaTooLargeError(f"The file holds {status.st_size} bytes; the limit is {max_bytes}")
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:  # it grew meanwhile
        raise MediaTooLargeError(f"The file holds more than the limit of {max_bytes} bytes")
    return data
