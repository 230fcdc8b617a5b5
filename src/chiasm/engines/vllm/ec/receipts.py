"""How a producer's worker tells its scheduler, often in another process, what it published: one small file for each.

vLLM's own way back (worker metadata) does not exist for a server that only encodes.
"""

from pathlib import Path

import msgspec

from chiasm.engines.vllm.ec.announcement import Announcement
from chiasm.engines.vllm.ec.engine_folder import OwnedFolder, file_name


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """An embedding that is offered until `expires_at` (of the clock that processes of a host share), or why it is not.

    `totals` are the worker's counts so far.
    """

    announcement: Announcement | None = None
    error: str | None = None
    expires_at: float
    totals: dict[str, float] = {}


def read_receipt(folder: Path, identity: str, now: float) -> Receipt | None:
    """What was published under an identity, unless it has expired."""
    try:
        receipt = msgspec.json.decode((folder / file_name(identity)).read_bytes(), type=Receipt)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return receipt if receipt.expires_at > now else None


class ReceiptWriter:
    """The worker's end. `close` removes everything."""

    def __init__(self, folder: Path) -> None:
        """Take the folder. Raises `InvalidSettingError` as `OwnedFolder` does."""
        self._folder = folder
        self._owned = OwnedFolder(folder)

    def write(self, identity: str, receipt: Receipt) -> None:
        """Tell of an embedding; replaces what was told before, at once and whole."""
        path = self._folder / file_name(identity)
        temporary = path.with_suffix(".new")
        temporary.write_bytes(msgspec.json.encode(receipt))
        temporary.replace(path)

    def remove(self, identity: str) -> None:
        """Take back what was told. Harmless when nothing was."""
        (self._folder / file_name(identity)).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder."""
        self._owned.close()
