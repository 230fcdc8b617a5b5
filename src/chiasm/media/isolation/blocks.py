"""Memory that a decoder process writes its results into and that its owner reads, instead of copies through the socket.

Each process has a few blocks of its own, mapped on both sides when it starts and used again and again: new memory
would cost more than the socket (ADR 7). A block is lent with a picture and comes back when the last array in it is
gone. The memory has no name and goes with the mappings, so whatever ends either process leaves nothing behind.
"""

import ctypes
import fcntl
import mmap
import os
import weakref
from collections import deque
from collections.abc import Iterable
from math import prod

import numpy as np
from numpy.typing import NDArray

NUM_BLOCKS = 4
BLOCK_BYTES = 32 * 2**20
"""Both bound what a process holds: memory of a block is there once something has been written to it."""
_NUM_BYTES = NUM_BLOCKS * BLOCK_BYTES
_MIN_BYTES = 16 * 1024
"""Smaller arrays are quicker through the socket."""
_ALIGNMENT = 64
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class LentBlocks:
    """The owner's side. `descriptor` is for the new process; `close` it once that has it."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("chiasm-decoder", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._free = deque(range(NUM_BLOCKS))
        try:
            os.ftruncate(self.descriptor, _NUM_BYTES)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)  # what is mapped stays, whatever the process does
            self._memory: mmap.mmap | None = mmap.mmap(self.descriptor, _NUM_BYTES)
        except BaseException:
            self.close()
            raise

    @property
    def num_free(self) -> int:
        """Blocks that no array lies in and no picture has."""
        return len(self._free)

    def close(self) -> None:
        """Let the mapping alone keep the memory."""
        os.close(self.descriptor)

    def unmap(self) -> None:
        """Let go of the memory; it stays as long as an array lies in it."""
        self._memory = None
        self._free.clear()

    def take(self) -> int | None:
        """Return the number of a free block, None when there is none."""
        try:
            return self._free.pop()  # the last that came back: its memory is there already
        except IndexError:
            return None

    def give_back(self, number: int) -> None:
        """Take back a block that nothing was taken from."""
        self._free.append(number)

    def arrays(
        self, number: int, wanted: Iterable[tuple[str, tuple[int, ...], int | None]]
    ) -> list[NDArray[np.generic] | None]:
        """Return the arrays of a lent block by dtype, shape and offset, None for those without one.

        The block comes back with the last of them. Raises `ValueError` for what does not lie in the block; then it does
        not come back.
        """
        assert self._memory is not None, "its process has ended"
        memory = (ctypes.c_ubyte * BLOCK_BYTES).from_buffer(self._memory, number * BLOCK_BYTES)
        found = [None if offset is None else _array(memory, dtype, shape, offset) for dtype, shape, offset in wanted]
        # Not before all are known to be good. Called in whatever thread drops the last one: a deque needs no lock.
        weakref.finalize(memory, self._free.append, number).atexit = False
        return found


def _array(
    memory: ctypes.Array[ctypes.c_ubyte], dtype: str, shape: tuple[int, ...], offset: int
) -> NDArray[np.generic]:
    count = prod(shape)
    if offset % _ALIGNMENT or not count or offset + count * np.dtype(dtype).itemsize > BLOCK_BYTES:
        raise ValueError("an array outside of its block")
    array: NDArray[np.generic] = np.frombuffer(memoryview(memory), np.dtype(dtype), count, offset).reshape(shape)
    return array


class BorrowedBlocks:
    """The decoder process's side: one block at a time is current, and filled from its beginning."""

    def __init__(self, descriptor: int) -> None:
        self._blocks = np.frombuffer(mmap.mmap(descriptor, _NUM_BYTES), np.uint8).reshape(NUM_BLOCKS, BLOCK_BYTES)
        os.close(descriptor)
        self._current: NDArray[np.uint8] | None = None
        self._used = 0

    def use(self, number: int | None) -> None:
        """Go on with this block, or with none."""
        self._current, self._used = None if number is None else self._blocks[number], 0

    def place(self, shape: tuple[int, ...]) -> NDArray[np.uint8] | None:
        """See `Place`."""
        num_bytes = prod(shape)
        if self._current is None or num_bytes < _MIN_BYTES or num_bytes > BLOCK_BYTES - self._used:
            return None
        found = self._current[self._used : self._used + num_bytes].reshape(shape)
        self._used += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        return found

    def offset(self, array: NDArray[np.generic]) -> int | None:
        """Return where in the current block a contiguous array lies, copied there if need be; None when not at all."""
        found = self._offset(array)
        if found is None and (copy := self.place((array.nbytes,))) is not None:
            copy[...] = array.reshape(-1).view(np.uint8)
            found = self._offset(copy)
        return found

    def _offset(self, array: NDArray[np.generic]) -> int | None:
        if self._current is None or not array.nbytes:
            return None
        offset = array.ctypes.data - self._current.ctypes.data
        is_inside = 0 <= offset <= BLOCK_BYTES - array.nbytes and offset % _ALIGNMENT == 0
        return offset if is_inside else None
