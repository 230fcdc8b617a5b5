"""The producer's side of the arena: where tensors are put, and when their memory is used again."""

import errno
import mmap
import os
import time
import weakref
from collections import deque
from contextlib import suppress

import msgspec
import numpy as np

from chiasm.connectors.offers import OfferBook, is_equal
from chiasm.connectors.shm import arena
from chiasm.connectors.shm.extents import Extents
from chiasm.errors import OverloadedError

_BYTES_PER_SLOT = 16 * 1024
_MIN_SLOTS = 1024
_PREFAULT_BYTES = 16 * 2**20
_MADV_POPULATE_WRITE = 23  # Linux 5.14; not in Python's mmap
_MAX_LEASE_CHECKS = 16
_MAX_UNYIELDING_BYTES = 2 * 2**20  # copied without letting other threads run, which takes less than getting back to it


class Placed(msgspec.Struct, frozen=True):
    """A tensor in the arena."""

    slot: int
    generation: int
    address: str


class Producer:
    """Not thread-safe: the transport's lock guards it.

    The arena has room for twice the quota: once for what is offered, once for what readers still use after that. Memory
    is backed by pages when it is first needed (the first 16 MiB at once) and then kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._num_slots = max(_MIN_SLOTS, max_bytes // _BYTES_PER_SLOT)
        self._start = arena.data_start(self._num_slots)
        num_data_bytes = 2 * -(-max_bytes // arena.PAGE_BYTES) * arena.PAGE_BYTES
        self._name, self._fd = arena.create(self._start + num_data_bytes)
        self._memory = mmap.mmap(self._fd, self._start + num_data_bytes)
        self._bytes = np.frombuffer(self._memory, np.uint8)
        self._unlink = weakref.finalize(self, _unlink, self._name, os.getpid())
        self._backed = 0  # where pages end
        self._generation = 0
        self._extents = Extents(num_data_bytes, arena.PAGE_BYTES)
        self._free_slots = list(range(self._num_slots))  # a stack: a slot used last is in caches and page tables
        self._lent: deque[int] = deque()  # no longer offered, but perhaps in use by readers
        self.book: OfferBook[Placed] = OfferBook(max_bytes, self, time.monotonic)
        self._back(self._start + min(_PREFAULT_BYTES, max_bytes))
        arena.write_head(self._memory, self._num_slots)

    def place(self, key: str, data: memoryview, expires_at: float) -> Placed:
        """See `Shelf.place`. Copying comes last: it empties caches, and what is left to do then is least."""
        if self._lent:
            self._reclaim(_MAX_LEASE_CHECKS)
        num_bytes = data.nbytes
        offset = self._take(num_bytes)
        slot = self._free_slots.pop()
        generation = self._generation = self._generation + 1
        arena.write_slot(self._memory, slot, generation, offset, num_bytes, expires_at)
        placed = Placed(slot, generation, f"{self._name}/{slot}/{generation}")
        if num_bytes <= _MAX_UNYIELDING_BYTES:
            self._memory[offset : offset + num_bytes] = data
        else:
            self._bytes[offset : offset + num_bytes] = np.frombuffer(data, np.uint8)
        return placed

    def holds(self, value: Placed, data: memoryview) -> bool:
        """See `Shelf.holds`."""
        generation, offset, num_bytes, _ = arena.read_slot(self._memory, value.slot)
        return generation == value.generation and is_equal(self._bytes[offset : offset + num_bytes].data, data)

    def renew(self, value: Placed, data: memoryview, expires_at: float) -> None:
        """See `Shelf.renew`."""
        arena.renew_slot(self._memory, value.slot, expires_at)

    def is_released(self, value: Placed) -> bool:
        """See `Shelf.is_released`."""
        return arena.released_generation(self._memory, value.slot) == value.generation

    def retire(self, value: Placed) -> None:
        """See `Shelf.retire`: its memory is used again when nobody reads it any more."""
        arena.clear_slot(self._memory, value.slot)
        if not self._recycle(value.slot):
            self._lent.append(value.slot)

    def close(self) -> None:
        """Stop offering. What readers still use is freed when they let go of it."""
        arena.mark_removed(self._fd)
        self.book.clear()
        self._unlink()
        self._bytes = np.empty(0, np.uint8)
        self._memory.close()
        os.close(self._fd)

    def _take(self, num_bytes: int) -> int:
        """Return the offset of free memory that is backed by pages; a slot is free then, too."""
        offset = self._extents.take(num_bytes) if self._free_slots else None
        if offset is None:
            self.book.sweep()
            self._reclaim(len(self._lent))
            offset = self._extents.take(num_bytes) if self._free_slots else None
        if offset is None:
            raise OverloadedError(
                f"No room for {num_bytes} bytes: {len(self._lent)} tensors that are no longer offered are still in use",
                hint="Raise transfer.max_bytes",
            )
        if self._start + offset + num_bytes > self._backed:
            try:
                self._back(self._start + offset + num_bytes)
            except OverloadedError:
                self._extents.give_back(offset, num_bytes)
                raise
        return self._start + offset

    def _back(self, end: int) -> None:
        """Have pages up to `end`: touching memory that the system cannot back would kill the process."""
        end = -(-end // arena.PAGE_BYTES) * arena.PAGE_BYTES
        try:
            os.posix_fallocate(self._fd, self._backed, end - self._backed)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.ENOMEM):
                raise
            raise OverloadedError(
                f"The system has no {end - self._backed} bytes of shared memory left",
                hint="Enlarge /dev/shm (in containers often 64 MiB) or lower transfer.max_bytes",
            ) from error
        with suppress(OSError):  # only faster
            self._memory.madvise(_MADV_POPULATE_WRITE, self._backed, end - self._backed)
        self._backed = end

    def _reclaim(self, max_checks: int) -> None:
        """Look again at slots that were in use, longest waiting first."""
        for _ in range(min(max_checks, len(self._lent))):
            number = self._lent.popleft()
            if not self._recycle(number):
                self._lent.append(number)

    def _recycle(self, number: int) -> bool:
        """Free a cleared slot's memory unless a reader uses it.

        A reader locks first and looks at the generation then; here it is cleared first and locked then. So either the
        lock fails here, or every later look finds the generation cleared.
        """
        if not arena.lock_slot(self._fd, number):
            return False
        arena.unlock_slot(self._fd, number)
        _, offset, num_bytes, _ = arena.read_slot(self._memory, number)
        self._extents.give_back(offset - self._start, num_bytes)
        self._free_slots.append(number)
        return True


def _unlink(name: str, pid: int) -> None:
    if os.getpid() == pid:  # not in a fork
        (arena.FOLDER / name).unlink(missing_ok=True)
