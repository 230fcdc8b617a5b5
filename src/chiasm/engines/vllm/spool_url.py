"""How a medium in the spool is named where vLLM wants a URL."""

import re
from pathlib import Path
from urllib.parse import unquote

from chiasm.errors import MediaRefusedError, TransferError
from chiasm.media.sources import read_source
from chiasm.protocol.media import SpoolSource
from chiasm.settings import MediaSettings

_SCHEME = "chiasm-spool"
_HANDLE = re.compile(rf"{_SCHEME}:([0-9a-z-]{{1,128}})/([1-9][0-9]{{0,11}})")


def spool_url(source: SpoolSource) -> str:
    """The URL of a spool file."""
    return f"{_SCHEME}:{source.name}/{source.num_bytes}"


def read_spool_url(url: str, folder: Path) -> bytes:
    """The bytes behind a spool URL, or behind the file URL of a file that lies directly in the spool. Blocks.

    Raises:
        MediaRefusedError: It is any other URL; nothing was opened.
        TransferError: The spool does not hold it any more.
    """
    match = _HANDLE.fullmatch(url)
    source = SpoolSource(match[1], int(match[2])) if match is not None else _named_by_file_url(url, folder)
    return read_source(source, MediaSettings(spool_directory=str(folder)))


def _named_by_file_url(url: str, folder: Path) -> SpoolSource:
    path = Path(unquote(url.removeprefix("file://")))
    if not url.startswith("file:///") or path.parent != folder:
        raise MediaRefusedError("This engine opens no URLs", hint="Send the request to the gateway, which fetches")
    try:
        return SpoolSource(path.name, path.lstat().st_size)
    except OSError:
        raise TransferError("The spool no longer holds a medium of the request") from None
