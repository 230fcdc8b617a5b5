"""How a producer's worker tells its scheduler, in another process, what it has published: one small file for each.

vLLM's own way back (worker metadata) does not exist for a server that only encodes. A folder belongs to one engine and
is locked while its worker lives; what a killed one left is removed by the next that starts.
"""

import fcntl
import hashlib
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

import msgspec

from chiasm.engines.vllm.ec.announcement import Announcement
from chiasm.errors import InvalidSettingError

_MEMORY = Path("/dev/shm")  # noqa: S108 - what is made below it belongs to one user and is checked
_OWNER = "owner"
_NUM_ATTEMPTS = 8


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """An embedding that is offered until `expires_at` (of the clock that processes of a host share), or why it is not.

    `totals` are the worker's counts so far.
    """

    announcement: Announcement | None = None
    error: str | None = None
    expires_at: float
    totals: dict[str, float] = {}


def receipts_folder(directory: str, engine: str) -> Path:
    """The folder of one engine; `directory` is the option, or empty for a folder of this user in memory."""
    parent = Path(directory) if directory else _MEMORY / f"chiasm-ec-{os.geteuid()}"
    return parent / f"ec-{_name(engine)[:32]}"


def read_receipt(folder: Path, identity: str, now: float) -> Receipt | None:
    """What was published under an identity, unless it has expired."""
    try:
        receipt = msgspec.json.decode((folder / _name(identity)).read_bytes(), type=Receipt)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return receipt if receipt.expires_at > now else None


class ReceiptWriter:
    """The worker's end. `close` removes everything."""

    def __init__(self, folder: Path) -> None:
        """Take the folder and remove what killed workers left beside it.

        Raises:
            InvalidSettingError: It cannot be made, is not safe, or another engine of the same name is running.
        """
        self._folder = folder
        _make(folder.parent)
        _remove_leftovers(folder.parent)
        self._lock = _make_and_lock(folder)
        if self._lock is None:
            raise InvalidSettingError(
                f"Another engine uses {folder}", hint="Give each server an engine_id of its own, or none"
            )

    def write(self, identity: str, receipt: Receipt) -> None:
        """Tell of an embedding; replaces what was told before, at once and whole."""
        path = self._folder / _name(identity)
        temporary = path.with_suffix(".new")
        temporary.write_bytes(msgspec.json.encode(receipt))
        temporary.replace(path)

    def remove(self, identity: str) -> None:
        """Take back what was told. Harmless when nothing was."""
        (self._folder / _name(identity)).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder."""
        if self._lock is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


def _name(text: str) -> str:
    """A file name for any text: identities may be a client's own words."""
    return hashlib.sha256(text.encode()).hexdigest()


def _make(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise InvalidSettingError(f"The folder {folder} cannot be made: {error.strerror}") from error
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not is_ours or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InvalidSettingError(
            f"The folder {folder} is somebody else's, or others may write to it", hint="Name another 'directory'"
        )


def _make_and_lock(folder: Path) -> int | None:
    for _ in range(_NUM_ATTEMPTS):  # another one that starts may take the new folder for a leftover and remove it
        _make(folder)
        try:
            descriptor = _try_lock(folder)
        except FileNotFoundError:
            continue
        if descriptor is None or os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)
    return None


def _try_lock(folder: Path) -> int | None:
    descriptor = os.open(folder / _OWNER, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _remove_leftovers(parent: Path) -> None:
    for folder in parent.glob("ec-*"):
        with suppress(OSError):  # gone meanwhile, or not ours
            lock = _try_lock(folder)
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)
