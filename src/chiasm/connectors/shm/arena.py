"""The arena file: its name, its layout, and the locks by which processes that may die at any time agree on it.

A head, a table of slots, then data. The head starts with a magic word for as long as the arena is in use. A slot
describes one tensor; its generation is 0 while it describes none. Two kinds of kernel lock are used, both of which end
with the process that holds them: the owner locks the whole file (`flock`) for as long as it lives, and a reader locks
the slot (an open-file-description lock on one byte that stands for it) for as long as it uses the tensor.
"""

import fcntl
import mmap
import os
import re
import secrets
import stat
import struct
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from chiasm.errors import HandleExpiredError, InvalidSettingError, TransferError

FOLDER = Path("/dev/shm")  # noqa: S108 - the tmpfs of shared memory; names in it are ours by pattern, owner and mode
PAGE_BYTES = 4096
_MAGIC = b"chiasmA1"
_HEAD = struct.Struct("<8sQ")  # magic, number of slots
_SLOT = struct.Struct("<QQQd")  # generation, offset, bytes, expiry in CLOCK_MONOTONIC, which processes share
_SLOT_STRIDE_BYTES = 64
_RELEASED = struct.Struct("<Q")  # behind the slot: the generation that its reader has released
_OFFER = struct.Struct("<QQQdQ")  # both at once
_NAME = r"chiasm-[0-9]{1,10}-[0-9]{1,10}-[0-9a-f]{16}"  # user, process, token
_ADDRESS = re.compile(rf"({_NAME})/([0-9]{{1,7}})/([0-9]{{1,19}})")
_LOCK = struct.Struct("@hhqqi4x")  # struct flock: type, whence, start, length, process
_NUM_CREATE_ATTEMPTS = 8


class Address(NamedTuple):
    """Where a tensor lies: the arena's file name, the slot, and the slot's generation."""

    name: str
    slot: int
    generation: int


def format_address(name: str, slot: int, generation: int) -> str:
    """Write what `parse_address` reads."""
    return f"{name}/{slot}/{generation}"


def parse_address(text: str) -> Address:
    """Raises `TransferError` on anything that `format_address` does not write."""
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise TransferError("The address is not one of shared memory", hint="Use one transfer.connector everywhere")
    return Address(match[1], int(match[2]), int(match[3]))


def data_start(num_slots: int) -> int:
    """Where the data begins: on a page."""
    end = _SLOT_STRIDE_BYTES * (num_slots + 1)
    return -(-end // PAGE_BYTES) * PAGE_BYTES


def write_head(memory: mmap.mmap, num_slots: int) -> None:
    """Initialise the layout of a file that is all zeros."""
    _HEAD.pack_into(memory, 0, _MAGIC, num_slots)


def is_in_use(memory: mmap.mmap) -> bool:
    """Whether the owner has not closed it and, if it was killed, nobody has removed it yet."""
    return memory[: len(_MAGIC)] == _MAGIC


def mark_removed(fd: int) -> None:
    """Tell those who have it mapped that nothing is offered any more."""
    os.pwrite(fd, bytes(len(_MAGIC)), 0)


def read_head(memory: mmap.mmap) -> int:
    """Return the number of slots. Raises `TransferError` when it is no arena of this version."""
    magic, num_slots = _HEAD.unpack_from(memory, 0)
    if magic != _MAGIC or data_start(num_slots) > len(memory):
        raise TransferError("The shared memory is not laid out as this version does it")
    return int(num_slots)


def write_slot(memory: mmap.mmap, number: int, generation: int, offset: int, num_bytes: int, expires_at: float) -> None:
    """Describe a tensor. Nobody knows its generation until its bytes are in place, so nobody reads half of this."""
    _SLOT.pack_into(memory, _SLOT_STRIDE_BYTES * (number + 1), generation, offset, num_bytes, expires_at)


def renew_slot(memory: mmap.mmap, number: int, expires_at: float) -> None:
    """Move a tensor's expiry."""
    struct.pack_into("<d", memory, _SLOT_STRIDE_BYTES * (number + 1) + 24, expires_at)


def clear_slot(memory: mmap.mmap, number: int) -> None:
    """From now on nobody gets a lease on the tensor; those who have one keep it."""
    struct.pack_into("<Q", memory, _SLOT_STRIDE_BYTES * (number + 1), 0)


def read_slot(memory: mmap.mmap, number: int) -> tuple[int, int, int, float]:
    """Return generation, offset from the start of the file, bytes and expiry."""
    return _SLOT.unpack_from(memory, _SLOT_STRIDE_BYTES * (number + 1))


def read_offer(memory: mmap.mmap, number: int) -> tuple[int, int, int, float, int]:
    """Return what `read_slot` does, and the generation that a reader released last."""
    return _OFFER.unpack_from(memory, _SLOT_STRIDE_BYTES * (number + 1))


def release_slot(fd: int, number: int, generation: int) -> None:
    """A reader's word that nobody takes this tensor any more; of another generation it means nothing."""
    os.pwrite(fd, _RELEASED.pack(generation), _SLOT_STRIDE_BYTES * (number + 1) + _SLOT.size)


def released_generation(memory: mmap.mmap, number: int) -> int:
    """The generation that a reader released last."""
    return int(_RELEASED.unpack_from(memory, _SLOT_STRIDE_BYTES * (number + 1) + _SLOT.size)[0])


def lock_slot(fd: int, number: int) -> bool:
    """Lock a slot for this open file to recycle it. False while anyone leases it."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0))
    except BlockingIOError:
        return False
    return True


def lease_slot(fd: int, number: int) -> None:
    """Lock a slot for this open file to read it. Raises `BlockingIOError` while its owner recycles it."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, number, 1, 0))


def unlock_slot(fd: int, number: int) -> None:
    """Undo `lock_slot` and `lease_slot`; closing the file does, too."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, number, 1, 0))


def create(num_bytes: int) -> tuple[str, int]:
    """Create a file of zeros, locked for this process's life; returns its name and descriptor.

    Raises:
        InvalidSettingError: This system has no shared memory as we need it.
    """
    try:
        for _ in range(_NUM_CREATE_ATTEMPTS):
            name = f"chiasm-{os.geteuid()}-{os.getpid()}-{secrets.token_hex(8)}"
            fd = os.open(FOLDER / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            # a process that starts at this very moment may take the file for a leftover before it is locked
            if _try_own(fd) and os.fstat(fd).st_nlink:
                os.ftruncate(fd, num_bytes)
                lock_slot(fd, 0)
                unlock_slot(fd, 0)
                return name, fd
            os.close(fd)
            (FOLDER / name).unlink(missing_ok=True)
    except OSError as error:
        raise InvalidSettingError(
            f"Shared memory cannot be used here: {error.strerror}", hint="Set transfer.connector to 'tcp'"
        ) from error
    raise InvalidSettingError("Shared memory cannot be locked here", hint="Set transfer.connector to 'tcp'")


def open_file(name: str, flags: int = os.O_RDONLY) -> tuple[int, int]:
    """Open an arena of any process; returns the descriptor and the inode.

    Raises:
        HandleExpiredError: It is gone.
        TransferError: It is not a private file of this user, or cannot be opened.
    """
    try:
        fd = os.open(FOLDER / name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise HandleExpiredError("The process that offered the tensor is gone") from None
    except OSError as error:
        raise TransferError(f"Shared memory cannot be opened: {error.strerror}") from error
    found = os.fstat(fd)
    if not _is_ours(found):
        os.close(fd)
        raise TransferError("The shared memory is not a private file of this user")
    return fd, found.st_ino


def remove_leftovers() -> int:
    """Remove the arenas of this user's processes that were killed; returns how many."""
    num_removed = 0
    for path in FOLDER.glob(f"chiasm-{os.geteuid()}-*"):
        if re.fullmatch(_NAME, path.name):
            with suppress(HandleExpiredError, TransferError):
                num_removed += _remove_if_abandoned(path)
    return num_removed


def _remove_if_abandoned(path: Path) -> bool:
    fd, _ = open_file(path.name, os.O_RDWR)
    try:
        if not _try_own(fd):
            return False
        mark_removed(fd)
        path.unlink(missing_ok=True)
    finally:
        os.close(fd)
    return True


def _try_own(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_ours(found: os.stat_result) -> bool:
    is_private = not found.st_mode & 0o077
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and is_private and found.st_size >= PAGE_BYTES
