"""Bounds the memory of decoding over all requests."""

import asyncio
from collections import deque


class PixelBudget:
    """A semaphore that counts pixels; first come, first served. Belongs to one event loop."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._free = capacity
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def num_used(self) -> int:
        """Pixels taken and not given back; 0 when idle."""
        return self._capacity - self._free

    async def acquire(self, num_pixels: int) -> int:
        """Wait until the pixels are free and take them; asking for more than all takes all.

        Returns what to give back. Safe to cancel: nothing is taken then.
        """
        share = min(num_pixels, self._capacity)
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((share, granted))
        self._grant()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                self._grant()  # whoever stood behind may fit
            else:
                self.release(share)  # granted and cancelled in the same turn of the loop
            raise
        return share

    def release(self, share: int) -> None:
        """Give back what `acquire` returned."""
        self._free += share
        self._grant()

    def _grant(self) -> None:
        while self._waiting:
            share, granted = self._waiting[0]
            if not granted.cancelled():
                if share > self._free:
                    return
                self._free -= share
                granted.set_result(None)
            self._waiting.popleft()
