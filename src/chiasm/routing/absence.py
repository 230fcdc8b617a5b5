"""Requests that no worker can take now, and workers that come back."""

import asyncio

from chiasm.routing.clock import Clock


class Absence:
    """Lets requests wait until some worker is ready again. Belongs to one event loop.

    Those that wait hold slots of the gateway; a bound on their number keeps these from running out for requests that
    can be served meanwhile.
    """

    def __init__(self, clock: Clock, max_waiting: int) -> None:
        self._clock = clock
        self._max_waiting = max_waiting
        self._waiting: set[asyncio.Future[str]] = set()

    @property
    def num_waiting(self) -> int:
        """Requests that wait now."""
        return len(self._waiting)

    def ended(self, name: str) -> None:
        """A worker is ready, and was not."""
        for wait in self._waiting:
            if not wait.done():
                wait.set_result(name)

    async def returned(self, until_s: float) -> str | None:
        """Wait for a worker to become ready. Its name; None when none did until then, or too many wait already."""
        limit_s = until_s - self._clock.now_s()
        if limit_s <= 0 or len(self._waiting) >= self._max_waiting:
            return None
        wait: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.add(wait)
        try:
            async with asyncio.timeout(limit_s):
                return await wait
        except TimeoutError:
            return None
        finally:
            self._waiting.discard(wait)
