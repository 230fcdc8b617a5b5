"""A folder in memory for what the processes of one vLLM engine tell each other beside vLLM's own ways.

It belongs to one engine, or to a crew with the folders of its engines inside, and is locked while its owner lives; what
a killed one left is removed by the next that starts.
"""

import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from chiasm.errors import InvalidSettingError

_MEMORY = Path("/dev/shm")  # noqa: S108 - what is made below it belongs to one user and is checked
_OWNER = "owner"
_NUM_ATTEMPTS = 8


def engine_folder(directory: str, engine: str) -> Path:
    """The folder of one engine; `directory` is the option, or empty for one of this user's in memory."""
    memory = _MEMORY if _MEMORY.is_dir() else Path(tempfile.gettempdir())
    parent = Path(directory) if directory else memory / f"chiasm-ec-{os.geteuid()}"
    return parent / f"ec-{file_name(engine)[:32]}"


def file_name(text: str) -> str:
    """A file name for any text: identities may be a client's own words."""
    return hashlib.sha256(text.encode()).hexdigest()


class OwnedFolder:
    """The owner's hold on the folder. `close` removes everything."""

    def __init__(self, path: Path, on_leftover: Callable[[Path], None] = lambda _: None) -> None:
        """Take the folder and remove what killed owners left beside it, after `on_leftover` has seen it.

        Raises:
            InvalidSettingError: It cannot be made, is not safe, or another engine of the same name is running.
        """
        self.path = path
        _make(path.parent)
        _remove_leftovers(path.parent, on_leftover)
        self._lock = _make_and_lock(path)
        if self._lock is None:
            raise InvalidSettingError(
                f"Another engine uses {path}", hint="Give each server an engine_id of its own, or none"
            )

    def close(self) -> None:
        """Remove the folder."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


def _make(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise InvalidSettingError(f"The folder {folder} cannot be made: {error.strerror}") from error
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not is_ours or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InvalidSettingError(
            f"The folder {folder} is somebody else's, or others may write to it",
            hint="Remove it, or name another 'directory'",
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


def _remove_leftovers(parent: Path, on_leftover: Callable[[Path], None]) -> None:
    for folder in parent.glob("ec-*"):
        with suppress(OSError):  # gone meanwhile, or not ours
            lock = _try_lock(folder)
            if lock is not None:
                on_leftover(folder)
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)
