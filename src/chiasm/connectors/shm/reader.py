"""The reader's side: bytes of other processes' arenas, as views where that is safe and pays, else as copies."""

import mmap
import os
import time
import weakref
from collections import deque
from contextlib import suppress
from threading import Lock

import numpy as np

from chiasm.connectors.base import Buffer
from chiasm.connectors.shm import arena
from chiasm.errors import HandleExpiredError, TransferError

_MIN_VIEW_BYTES = 128 * 1024
_MAX_LEASED_SHARE = 16


class MappedArena:
    """One producer's file, mapped for reading. It stays mapped as long as it is known or a view of it lives."""

    def __init__(self, name: str) -> None:
        fd = arena.open_readable(name)
        try:
            self.inode = os.fstat(fd).st_ino
            self.memory = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        except (OSError, ValueError) as error:
            raise TransferError(f"Shared memory cannot be mapped: {error}") from error
        finally:
            os.close(fd)
        self.name = name
        self.num_slots = arena.read_head(self.memory)
        self.leased_bytes = 0
        self.released: deque[int] = deque()  # appended to by finalizers, which may run anywhere and must not lock

    @property
    def is_removed(self) -> bool:
        """Whether its file has been removed: nothing new will come from it."""
        try:
            return (arena.FOLDER / self.name).stat().st_ino != self.inode
        except OSError:
            return True

    def may_lease(self, num_bytes: int) -> bool:
        """Whether a view of so many bytes may be given out: one of any size, more up to a share of the arena."""
        while self.released:
            self.leased_bytes -= self.released.popleft()
        is_little = self.leased_bytes + num_bytes <= len(self.memory) // _MAX_LEASED_SHARE
        return num_bytes >= _MIN_VIEW_BYTES and (not self.leased_bytes or is_little)


class Reader:
    """Thread-safe. A view's lease is an open file with a lock on the slot: it ends with the view or the process."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._arenas: dict[str, MappedArena] = {}

    def get(self, text: str, num_bytes: int) -> Buffer:
        """See `Transport.get`; never waits."""
        address = arena.parse_address(text)
        mapped = self._mapped(address.name)
        if address.slot >= mapped.num_slots:
            raise TransferError("The address names a slot that is not there")
        lease = arena.open_readable(address.name)
        try:
            if os.fstat(lease).st_ino != mapped.inode or not arena.lock_slot(lease, address.slot, is_shared=True):
                raise HandleExpiredError("The tensor is no longer offered")
            slot = _checked_slot(mapped, address, num_bytes)
            view = self._view(mapped, slot, lease)
        except BaseException:
            os.close(lease)
            raise
        if view is None:
            copied = _copy(mapped, slot)
            os.close(lease)
            return copied
        return view

    def close(self) -> None:
        """Forget the arenas; views given out stay good."""
        with self._lock:
            self._arenas.clear()

    def _mapped(self, name: str) -> MappedArena:
        with self._lock:
            mapped = self._arenas.get(name)
            if mapped is None:
                for other in [other for other in self._arenas.values() if other.is_removed]:
                    del self._arenas[other.name]
                mapped = self._arenas[name] = MappedArena(name)
            return mapped

    def _view(self, mapped: MappedArena, slot: arena.Slot, lease: int) -> memoryview | None:
        with self._lock:
            if not mapped.may_lease(slot.num_bytes):
                return None
            mapped.leased_bytes += slot.num_bytes
        array = np.frombuffer(mapped.memory, np.uint8, slot.num_bytes, slot.offset)
        weakref.finalize(array, _release, lease, mapped.released, slot.num_bytes).atexit = False
        return array.data


def _checked_slot(mapped: MappedArena, address: arena.Address, num_bytes: int) -> arena.Slot:
    slot = arena.read_slot(mapped.memory, address.slot)
    if not address.generation or slot.generation != address.generation or slot.expires_at <= time.monotonic():
        raise HandleExpiredError("The tensor is no longer offered")
    if slot.num_bytes != num_bytes or slot.offset + num_bytes > len(mapped.memory):
        raise TransferError(f"{slot.num_bytes} bytes are offered, {num_bytes} were announced")
    return slot


def _copy(mapped: MappedArena, slot: arena.Slot) -> memoryview:
    copied = np.frombuffer(mapped.memory, np.uint8, slot.num_bytes, slot.offset).copy()
    return copied.data.toreadonly()


def _release(lease: int, released: deque[int], num_bytes: int) -> None:
    with suppress(OSError):
        os.close(lease)
    released.append(num_bytes)
