"""A worker's media threads: pictures prepared side by side, in the order in which they come."""

from collections import deque
from collections.abc import Callable
from functools import partial

import simpy

from chiasm.simulator.device import Busy
from chiasm.simulator.host import Cores, Work
from chiasm.simulator.traffic import Picture

OnPrepared = Callable[[], object]


class MediaThreads:
    """So many threads and one queue. Told by calls, not by processes: there is one for each picture of a simulation."""

    def __init__(
        self, cores: Cores, num_threads: int, begin: Callable[[Picture], float], busy: Busy, cores_each: float = 1.0
    ) -> None:
        """Open them. `begin` is called when work on a picture begins and says how many seconds it takes.

        Work is counted in `busy`, when it is done.
        """
        self._cores = cores
        self._busy = busy
        self._cores_each = cores_each
        self._num_free = num_threads
        self._begin = begin
        self._is_stopped = False
        self._running: dict[Work, None] = {}  # in order: what happens must not hang on addresses
        self._waiting: deque[tuple[Picture | None, OnPrepared]] = deque()

    def prepare(self, picture: Picture | None, on_prepared: OnPrepared) -> None:
        """Queue a picture; without one, wait for a thread and do nothing there."""
        self._waiting.append((picture, on_prepared))
        self._start()

    def stop(self) -> None:
        """The worker is dead: nothing waits any more, and nothing that was begun ends."""
        self._is_stopped = True
        self._waiting.clear()
        for work in self._running:
            work.abandon()

    def _start(self) -> None:
        while self._num_free and self._waiting:
            picture, on_prepared = self._waiting.popleft()
            if picture is None:
                on_prepared()
                continue
            self._num_free -= 1
            seconds = self._begin(picture)
            work = self._cores.work(seconds, self._cores_each)
            self._running[work] = None
            work.done.callbacks.append(partial(self._finish, work, seconds, on_prepared))

    def _finish(self, work: Work, seconds: float, on_prepared: OnPrepared, _: simpy.Event) -> None:
        if self._is_stopped:
            return
        del self._running[work]
        self._busy.add("media", work.took_s(seconds))
        self._num_free += 1
        on_prepared()
        self._start()
