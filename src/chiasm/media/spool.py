"""The media spool: encoded bytes as files in memory, for workers of this host and for a second try.

Items then cross to workers as a name of some hundred bytes. A file is there until the last request that counts on it
lets go, at most for the settings' time. Servers of one user may share a folder: each names its files after itself, and
what a killed one left is removed by the next that starts.
"""

import errno
import fcntl
import itertools
import os
import secrets
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from chiasm.errors import InvalidSettingError, OverloadedError
from chiasm.media.sources import spool_folder
from chiasm.protocol.media import SpoolSource
from chiasm.settings import MediaSettings

_OWNER = "owner-"


class _File(msgspec.Struct):
    identity: str
    source: SpoolSource
    expires_at_s: float
    num_holds: int = 1


class Spool:
    """The files of one server. For any thread; `close` when done."""

    def __init__(self, settings: MediaSettings, now_s: Callable[[], float] = time.monotonic) -> None:
        """Take the folder into use and remove what killed servers left there.

        Raises:
            InvalidSettingError: The folder cannot be used, or others may use it.
        """
        self.folder = _made(spool_folder(settings), is_named=bool(settings.spool_directory))
        self._settings = settings
        self._now_s = now_s
        self._lock = threading.Lock()
        self._files: OrderedDict[str, _File] = OrderedDict()  # by name, the one that expires first in front
        self._names: dict[str, str] = {}  # by identity
        self._num_bytes = 0
        self._numbers = itertools.count()
        remove_leftovers(self.folder)
        self._owner = _Owner(self.folder)

    @property
    def num_files(self) -> int:
        """Files held, those being written not included."""
        return len(self._files)

    def num_files_of(self, identity: str) -> int:
        """Files of one medium that are held."""
        with self._lock:
            self._expire()
            return int(identity in self._names)

    @property
    def num_bytes(self) -> int:
        """Bytes of the files held and of those being written."""
        return self._num_bytes

    def hold(self, identity: str, data: bytes) -> SpoolSource:
        """Keep the bytes in a file until `release`; the same identity again is the same file, held once more. Blocks.

        Raises:
            OverloadedError: `max_spool_bytes` are held, or the folder's file system is full.
        """
        with self._lock:
            self._expire()
            if (known := self._held_again(identity)) is not None:
                return known
            self._reserve(len(data))
        source = SpoolSource(f"{self._owner.name}-{next(self._numbers):x}-{identity}", len(data))
        try:
            self._write(source, data)
        except BaseException:
            with self._lock:
                self._num_bytes -= len(data)
            raise
        with self._lock:
            if (known := self._held_again(identity)) is not None:  # written twice at once: one of them is enough
                self._num_bytes -= len(data)
                self._unlink(source)
                return known
            expires_at_s = self._now_s() + self._settings.spool_ttl_s
            self._files[source.name] = _File(identity, source, expires_at_s)
            self._names[identity] = source.name
        return source

    def release(self, source: SpoolSource) -> None:
        """Let go of a file once; the last to do so removes it. Nothing happens to one that has expired."""
        with self._lock:
            self._expire()
            file = self._files.get(source.name)
            if file is None:
                return
            file.num_holds -= 1
            if file.num_holds == 0:
                self._drop(file)

    def lease(self) -> "SpoolLease":
        """Begin to hold files for one request."""
        return SpoolLease(self)

    def close(self) -> None:
        """Remove all files, whoever still counts on them. `hold` must not be called any more."""
        with self._lock:
            for file in list(self._files.values()):
                self._drop(file)
        self._owner.close()

    def _held_again(self, identity: str) -> SpoolSource | None:
        name = self._names.get(identity)
        if name is None:
            return None
        file = self._files[name]
        file.num_holds += 1
        file.expires_at_s = self._now_s() + self._settings.spool_ttl_s
        self._files.move_to_end(name)
        return file.source

    def _reserve(self, num_bytes: int) -> None:
        limit = self._settings.max_spool_bytes
        if self._num_bytes + num_bytes > limit:
            raise _full(f"The spool holds {self._num_bytes} bytes; with {num_bytes} more it would exceed {limit}")
        self._num_bytes += num_bytes

    def _write(self, source: SpoolSource, data: bytes) -> None:
        path = self.folder / f"{source.name}.new"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]
            path.rename(self.folder / source.name)
        except OSError as error:
            path.unlink(missing_ok=True)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise _full("The file system of the spool is full") from error
            raise

    def _expire(self) -> None:
        now_s = self._now_s()
        while self._files and (first := next(iter(self._files.values()))).expires_at_s <= now_s:
            self._drop(first)

    def _drop(self, file: _File) -> None:
        del self._files[file.source.name], self._names[file.identity]
        self._num_bytes -= file.source.num_bytes
        self._unlink(file.source)

    def _unlink(self, source: SpoolSource) -> None:
        (self.folder / source.name).unlink(missing_ok=True)


class SpoolLease:
    """The files of one request, let go of together. For any thread; a context manager, or call `close`."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._lock = threading.Lock()
        self._sources: list[SpoolSource] | None = []

    def hold(self, identity: str, data: bytes) -> SpoolSource:
        """Hold as `Spool.hold` does until the lease is closed; what comes after that is let go of at once."""
        source = self._spool.hold(identity, data)
        with self._lock:
            if self._sources is not None:
                self._sources.append(source)
                return source
        self._spool.release(source)  # the request ended while a thread of it still wrote
        return source

    def close(self) -> None:
        """Let go of all files. May be called more than once."""
        with self._lock:
            sources, self._sources = self._sources, None
        for source in sources or ():
            self._spool.release(source)

    def __enter__(self) -> "SpoolLease":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Owner:
    """Marks a server's files as in use: a file that it keeps locked for as long as its process lives."""

    def __init__(self, folder: Path) -> None:
        self.name = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._path = folder / f"{_OWNER}{self.name}"
        unlocked = folder / f"new-{self._path.name}"
        self._descriptor = os.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        unlocked.rename(self._path)  # nobody takes it for that of a dead server before it is locked

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def remove_leftovers(folder: Path) -> int:
    """Remove the files of this user's servers that are dead. Returns how many servers that was."""
    num_dead = 0
    for path in folder.glob(f"{_OWNER}*"):
        with suppress(OSError):  # gone meanwhile, or alive: locked
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                if os.fstat(descriptor).st_uid != os.geteuid():
                    continue
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for file in folder.glob(f"{path.name.removeprefix(_OWNER)}-*"):
                    file.unlink(missing_ok=True)
                path.unlink(missing_ok=True)
                num_dead += 1
            finally:
                os.close(descriptor)
    return num_dead


def _made(folder: Path, *, is_named: bool) -> Path:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat(follow_symlinks=is_named)  # where anybody can write, a link may be anybody's
    except OSError as error:
        raise InvalidSettingError(f"The spool folder {folder} cannot be made: {error.strerror}") from error
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    if not is_ours or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InvalidSettingError(
            f"The spool folder {folder} is not safe: it is somebody else's, or others may write to it",
            hint="Name another one with media.spool_directory",
        )
    return folder


def _full(message: str) -> OverloadedError:
    return OverloadedError(message, hint="Retry later, or raise media.max_spool_bytes and the room in its folder")
