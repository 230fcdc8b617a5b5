"""The reader's side: bytes of other processes' arenas, as views where that is safe and pays, else as copies."""

import mmap
import os
import time
from collections import deque
from contextlib import suppress
from threading import Lock
from typing import Any

import numpy as np

from chiasm.connectors.base import Buffer
from chiasm.connectors.shm import arena
from chiasm.errors import HandleExpiredError, TransferError

_MIN_VIEW_BYTES = 128 * 1024
_MAX_LEASED_SHARE = 16
_MAX_VIEWS = 64  # each is an open file
_MAX_IDLE_LEASES = 8
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
        self._returned: deque[int] = deque()  # bytes of views that have ended
        self._leased_bytes = 0
        self._num_views = 0

    def __del__(self) -> None:
        for fd in getattr(self, "_idle", ()):
            os.close(fd)

    def lease(self, slot: int) -> int:
        """Lock a slot; returns the open file. Raises `TransferError` and its kinds."""
        if slot >= self._num_slots:
            raise TransferError("The address names a slot that is not there")
        try:
            fd = self._idle.pop()
        except IndexError:
            fd = self._open()
        try:
            is_locked = arena.lock_slot(fd, slot, is_shared=True)
        except OSError as error:
            os.close(fd)
            raise TransferError(f"Shared memory cannot be locked: {error.strerror}") from error
        if not is_locked:
            self._idle.append(fd)
            raise HandleExpiredError("The tensor is no longer offered")
        return fd

    def give_back(self, fd: int, slot: int) -> None:
        """End a lease."""
        if len(self._idle) < _MAX_IDLE_LEASES:
            arena.unlock_slot(fd, slot)
            self._idle.append(fd)
        else:
            os.close(fd)

    def end_view(self, fd: int, slot: int, num_bytes: int) -> None:
        """End a lease that was counted by `try_count`."""
        with suppress(OSError):
            self.give_back(fd, slot)
        self._returned.append(num_bytes)

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

    def try_count(self, num_bytes: int) -> bool:
        """Count a view of so many bytes, if it may be: one of any size, more up to a share of the arena."""
        while self._returned:
            self._leased_bytes -= self._returned.popleft()
            self._num_views -= 1
        is_much = self._leased_bytes + num_bytes > len(self.memory) // _MAX_LEASED_SHARE
        if self._num_views and (is_much or self._num_views >= _MAX_VIEWS):
            return False
        self._leased_bytes += num_bytes
        self._num_views += 1
        return True

    def _open(self, flags: int = os.O_RDONLY) -> int:
        fd, inode = arena.open_file(self._name, flags)
        if inode != self._inode:
            os.close(fd)
            raise HandleExpiredError("The process that offered the tensor is gone")
        return fd


class View(np.ndarray[Any, np.dtype[np.uint8]]):
    """Bytes in an arena. The lease ends with this object, which every memoryview and tensor made of it keeps alive."""

    lease: tuple[MappedArena, int, int] | None = None

    def __del__(self) -> None:
        if self.lease is not None:
            mapped, fd, slot = self.lease
            mapped.end_view(fd, slot, self.nbytes)


class Reader:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._arenas: dict[str, MappedArena] = {}

    def get(self, text: str, num_bytes: int) -> Buffer:
        """See `Transport.get`; never waits."""
        mapped, slot, generation = self._place(text)
        fd = mapped.lease(slot)
        is_view = False
        try:
            offset = _checked_offset(mapped.memory, slot, generation, num_bytes)
            if num_bytes >= _MIN_VIEW_BYTES:
                with self._lock:
                    is_view = mapped.try_count(num_bytes)
            if not is_view:
                return _copy(mapped.memory, offset, num_bytes)
            view = View(num_bytes, np.uint8, mapped.memory, offset)
            view.lease = (mapped, fd, slot)
            return view.data
        finally:
            if not is_view:
                mapped.give_back(fd, slot)

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


def _checked_offset(memory: mmap.mmap, slot: int, generation: int, num_bytes: int) -> int:
    offered, offset, offered_bytes, expires_at, released = arena.read_offer(memory, slot)
    is_offered = offered == generation != released and generation and expires_at > time.monotonic()
    if not is_offered or not arena.is_in_use(memory):
        raise HandleExpiredError("The tensor is no longer offered")
    if offered_bytes != num_bytes or offset + num_bytes > len(memory):
        raise TransferError(f"{offered_bytes} bytes are offered, {num_bytes} were announced")
    return offset


def _copy(memory: mmap.mmap, offset: int, num_bytes: int) -> memoryview:
    return np.frombuffer(memory, np.uint8, num_bytes, offset).copy().data.toreadonly()
