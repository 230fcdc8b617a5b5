"""A `Transport` over a shared folder, for debugging: every tensor is a file that can be looked at."""

import os
import re
import secrets
import stat
import struct
import time
from contextlib import suppress
from io import FileIO
from pathlib import Path
from threading import Lock

import numpy as np

from chiasm.connectors.base import Buffer
from chiasm.connectors.offers import OfferBook, is_equal
from chiasm.errors import HandleExpiredError, InvalidSettingError, OverloadedError, ShuttingDownError, TransferError

_HEAD = struct.Struct("<8sQd")  # magic, bytes, expiry in Unix time: the readers may be on other hosts
_MAGIC = b"chiasmF1"
_NAME = re.compile(r"chiasm-[0-9a-f]{32}\.tensor")
_TEMPORARY_SUFFIX = ".part"
_MAX_WRITE_S = 3600.0  # a file without a head that is older was left by a process that was killed


class FileTransport:
    """Files are written aside and renamed. Removes, at its start, files of anyone that have expired."""

    def __init__(self, *, directory: str, max_bytes: int) -> None:
        if not directory or not Path(directory).is_dir():
            raise InvalidSettingError(
                "transfer.directory is not a folder", hint="Name an existing folder that all workers share"
            )
        self._folder = Path(directory)
        self._lock = Lock()
        self._is_closed = False
        self._book: OfferBook[str] = OfferBook(max_bytes, self, time.time)
        self._remove_expired()

    @property
    def kind(self) -> str:
        """See `Transport.kind`."""
        return "file"

    @property
    def num_offered(self) -> int:
        """See `Transport.num_offered`."""
        with self._lock:
            return len(self._book)

    @property
    def offered_bytes(self) -> int:
        """See `Transport.offered_bytes`."""
        return self._book.used_bytes

    def put(self, key: str, data: Buffer, *, ttl_s: float) -> str:
        """See `Transport.put`. Bytes that differ from those offered under the key replace them."""
        with self._lock:
            if self._is_closed:
                raise ShuttingDownError("The transport is closed")
            return self._book.put(key, data, ttl_s)

    def get(self, address: str, num_bytes: int, *, timeout_s: float) -> Buffer:
        """See `Transport.get`. The folder is trusted to answer in time."""
        path = self._path(address)
        try:
            with _open(path) as file:
                return _read(file, num_bytes)
        except FileNotFoundError:
            raise HandleExpiredError("The tensor is no longer offered") from None
        except OSError as error:
            raise TransferError(f"The tensor's file cannot be read: {error.strerror}") from error

    def release(self, address: str, *, timeout_s: float) -> None:
        """See `Transport.release`."""
        path = self._path(address)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise TransferError(f"The tensor's file cannot be removed: {error.strerror}") from error

    def drop(self, key: str) -> bool:
        """See `Transport.drop`."""
        with self._lock:
            return self._book.remove(key)

    def close(self) -> None:
        """See `Transport.close`."""
        with self._lock:
            self._is_closed = True
            self._book.clear()

    def place(self, key: str, data: memoryview, expires_at: float) -> str:
        """See `Shelf.place`."""
        name = f"chiasm-{secrets.token_hex(16)}.tensor"
        self.renew(name, data, expires_at)
        return name

    def holds(self, value: str, data: memoryview) -> bool:
        """See `Shelf.holds`."""
        with suppress(TransferError):
            return is_equal(self.get(value, data.nbytes, timeout_s=0), data)
        return False

    def renew(self, value: str, data: memoryview, expires_at: float) -> None:
        """See `Shelf.renew`."""
        temporary = self._folder / (value + _TEMPORARY_SUFFIX)
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(_HEAD.pack(_MAGIC, data.nbytes, expires_at))
                file.write(data)
            temporary.replace(self._folder / value)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise OverloadedError(
                f"The tensor's file cannot be written: {error.strerror}", hint="Look at transfer.directory"
            ) from error

    def is_released(self, value: str) -> bool:
        """See `Shelf.is_released`: the reader has removed the file."""
        return not (self._folder / value).exists()

    def retire(self, value: str) -> None:
        """See `Shelf.retire`."""
        with suppress(OSError):  # it expires all the same
            (self._folder / value).unlink(missing_ok=True)

    def _path(self, address: str) -> Path:
        if self._is_closed:
            raise TransferError("The transport is closed")
        if not _NAME.fullmatch(address):
            raise TransferError("The address is not one of a file", hint="Use one transfer.connector everywhere")
        return self._folder / address

    def _remove_expired(self) -> None:
        for path in self._folder.glob("chiasm-*.tensor*"):
            if _NAME.fullmatch(path.name.removesuffix(_TEMPORARY_SUFFIX)) and _is_expired(path):
                with suppress(OSError):
                    path.unlink(missing_ok=True)


def _open(path: Path) -> FileIO:
    return FileIO(path, opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK))


def _is_expired(path: Path) -> bool:
    try:
        with _open(path) as file:
            head = file.read(_HEAD.size)
            written_at = os.fstat(file.fileno()).st_mtime
    except OSError:
        return False
    if len(head) < _HEAD.size or not head.startswith(_MAGIC):
        return written_at < time.time() - _MAX_WRITE_S
    return bool(_HEAD.unpack(head)[2] <= time.time())


def _read(file: FileIO, num_bytes: int) -> memoryview:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise TransferError("The address does not name a regular file")
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size or not head.startswith(_MAGIC):
        raise TransferError("The file is not a tensor's")
    _, offered_bytes, expires_at = _HEAD.unpack(head)
    if expires_at <= time.time():
        raise HandleExpiredError("The tensor is no longer offered")
    if offered_bytes != num_bytes or status.st_size != _HEAD.size + num_bytes:
        raise TransferError(f"The file holds {status.st_size - _HEAD.size} bytes, {num_bytes} were announced")
    data = np.empty(num_bytes, np.uint8)
    read_bytes = 0
    while read_bytes < num_bytes:
        count = file.readinto(data.data[read_bytes:])
        if not count:
            raise TransferError(f"The file ended after {read_bytes} of {num_bytes} bytes")
        read_bytes += count
    return data.data.toreadonly()
