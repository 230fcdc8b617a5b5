"""The reader's side: bytes of other processes' arenas, as views where that is safe and pays, else as copies."""

import mmap
import os
from collections import deque
from contextlib import suppress
from threading import Lock
from time import monotonic
from typing import Any

import numpy as np

from chiasm.connectors.base import Buffer
from chiasm.connectors.shm import arena
from chiasm.errors import HandleExpiredError, TransferError

_MIN_VIEW_BYTES = 128 * 1024
_MAX_LEASED_SHARE = 16
_MAX_VIEWS = 64  # each is an open file
_MAX_IDLE_LEASES = 8
_BYTE = np.dtype(np.uint8)
_MOST_DIGITS = 19  # of a slot or generation, so that both are 64-bit numbers


class MappedArena:
    """One producer's file, mapped for reading. It stays mapped as long as it is known or a view of it lives.

    A lease on a slot is a lock of an open file of its own, so that the system ends it with the process. Finalizers give
    leases back, which may run in any thread at any instruction: they take no lock of ours.
    """

    def __init__(self, name: str) -> None:
        fd, self._inode = arena.open_file(name)
        try:
            self.memory = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        except (OSError, ValueError) as error:
            raise TransferError(f"Shared memory cannot be mapped: {error}") from error
        finally:
            os.close(fd)
        self._name = name
        self._num_slots = arena.read_head(self.memory)
        self._idle: deque[int] = deque()  # open files without a lock
        self._views: dict[int, int] = {}  # open file that a view leases by -> its bytes

    def __del__(self) -> None:
        for fd in getattr(self, "_idle", ()):
            os.close(fd)

    def take(self, slot: int, generation: int, num_bytes: int) -> Buffer:
        """Bytes that a slot offers, read-only: a view that keeps its lease, or a copy. Raises as `Transport.get`."""
        fd = self._lease(slot)
        is_view = False
        try:
            offset = self._offset(slot, generation, num_bytes)
            is_view = num_bytes >= _MIN_VIEW_BYTES and self._try_count(fd, num_bytes)
            if not is_view:
                return np.frombuffer(self.memory, np.uint8, num_bytes, offset).copy().data.toreadonly()
            view = View(num_bytes, _BYTE, self.memory, offset)
            view.lease = (self, fd, slot)
            return view.data
        finally:
            if not is_view:
                self.give_back(fd, slot)

    def give_back(self, fd: int, slot: int) -> None:
        """End a lease."""
        if len(self._idle) < _MAX_IDLE_LEASES:
            arena.unlock_slot(fd, slot)
            self._idle.append(fd)
        else:
            os.close(fd)

    def end_view(self, fd: int, slot: int) -> None:
        """End a lease that was counted by `_try_count`."""
        del self._views[fd]
        with suppress(OSError):
            self.give_back(fd, slot)

    def release(self, slot: int, generation: int) -> None:
        """Tell the producer that nobody takes a tensor any more."""
        if slot >= self._num_slots:
            raise TransferError("The address names a slot that is not there")
        fd = self._open(os.O_RDWR)
        try:
            arena.release_slot(fd, slot, generation)
        except OSError as error:
            raise TransferError(f"Shared memory cannot be written: {error.strerror}") from error
        finally:
            os.close(fd)

    def _lease(self, slot: int) -> int:
        """Lock a slot; returns the open file."""
        if slot >= self._num_slots:
            raise TransferError("The address names a slot that is not there")
        try:
            fd = self._idle.pop()
        except IndexError:
            fd = self._open()
        try:
            arena.lease_slot(fd, slot)
        except BlockingIOError:
            self._idle.append(fd)
            raise HandleExpiredError("The tensor is no longer offered") from None
        except OSError as error:
            os.close(fd)
            raise TransferError(f"Shared memory cannot be locked: {error.strerror}") from error
        return fd

    def _offset(self, slot: int, generation: int, num_bytes: int) -> int:
        """Where the tensor lies that a leased slot offers."""
        memory = self.memory
        offered, offset, offered_bytes, expires_at, released = arena.read_offer(memory, slot)
        is_offered = offered == generation != released and generation and expires_at > monotonic()
        if not is_offered or not arena.is_in_use(memory):
            raise HandleExpiredError("The tensor is no longer offered")
        if offered_bytes != num_bytes or offset + num_bytes > len(memory):
            raise TransferError(f"{offered_bytes} bytes are offered, {num_bytes} were announced")
        return offset

    def _try_count(self, fd: int, num_bytes: int) -> bool:
        """Count a view of so many bytes, if it may be: one of any size, more up to a share of the arena.

        It counts before it looks, so that of two threads at once none may take a view rather than both.
        """
        views = self._views
        views[fd] = num_bytes
        if len(views) == 1:
            return True
        is_much = sum(list(views.values())) > len(self.memory) // _MAX_LEASED_SHARE
        if is_much or len(views) > _MAX_VIEWS:
            del views[fd]
            return False
        return True

    def _open(self, flags: int = os.O_RDONLY) -> int:
        fd, inode = arena.open_file(self._name, flags)
        if inode != self._inode:
            os.close(fd)
            raise HandleExpiredError("The process that offered the tensor is gone")
        return fd


class View(np.ndarray[Any, np.dtype[np.uint8]]):
    """Bytes in an arena. The lease ends with this object, which every memoryview and tensor made of it keeps alive."""

    __slots__ = ("lease",)
    lease: tuple[MappedArena, int, int]  # missing where numpy made one of these of another

    def __del__(self) -> None:
        lease = getattr(self, "lease", None)
        if lease is not None:
            mapped, fd, slot = lease
            mapped.end_view(fd, slot)


class Reader:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._arenas: dict[str, MappedArena] = {}

    def get(self, text: str, num_bytes: int) -> Buffer:
        """See `Transport.get`; never waits."""
        mapped, slot, generation = self._place(text)
        return mapped.take(slot, generation, num_bytes)

    def release(self, text: str) -> None:
        """See `Transport.release`."""
        with suppress(HandleExpiredError):
            mapped, slot, generation = self._place(text)
            mapped.release(slot, generation)

    def close(self) -> None:
        """Forget the arenas; views given out stay good."""
        with self._lock:
            self._arenas.clear()

    def _place(self, text: str) -> tuple[MappedArena, int, int]:
        """The arena, slot and generation of an address. The whole text is looked at only before an arena is mapped."""
        name, _, numbers = text.partition("/")
        slot, _, generation = numbers.partition("/")
        mapped = self._arenas.get(name)
        is_short = len(slot) <= _MOST_DIGITS and len(generation) <= _MOST_DIGITS
        if mapped is not None and is_short and slot.isdecimal() and generation.isdecimal():
            return mapped, int(slot), int(generation)
        address = arena.parse_address(text)
        return self._arenas.get(address.name) or self._map(address.name), address.slot, address.generation

    def _map(self, name: str) -> MappedArena:
        with self._lock:
            for other in [other for other, mapped in self._arenas.items() if not arena.is_in_use(mapped.memory)]:
                del self._arenas[other]
            mapped = self._arenas[name] = MappedArena(name)
            return mapped
