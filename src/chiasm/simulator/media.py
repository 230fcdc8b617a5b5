"""A worker's media threads: pictures prepared side by side, in the order in which they come."""

from collections import deque
from collections.abc import Callable
from functools import partial

import simpy

from chiasm.simulator.traffic import Picture

OnPrepared = Callable[[], object]


class MediaThreads:
    """So many threads and one queue. Told by calls, not by processes: there is one for each picture of a simulation."""

    def __init__(self, env: simpy.Environment, num_threads: int, begin: Callable[[Picture], float]) -> None:
        """Open them. `begin` is called when work on a picture begins and says how many seconds it takes."""
        self._env = env
        self._num_free = num_threads
        self._begin = begin
        self._is_stopped = False
        self._waiting: deque[tuple[Picture | None, OnPrepared]] = deque()

    def prepare(self, picture: Picture | None, on_prepared: OnPrepared) -> None:
        """Queue a picture; without one, wait for a thread and do nothing there."""
        self._waiting.append((picture, on_prepared))
        self._start()

    def stop(self) -> None:
        """The worker is dead: nothing waits any more, and nothing that was begun ends."""
        self._is_stopped = True
        self._waiting.clear()

    def _start(self) -> None:
        while self._num_free and self._waiting:
            picture, on_prepared = self._waiting.popleft()
            if picture is None:
                on_prepared()
                continue
            self._num_free -= 1
            self._env.timeout(self._begin(picture)).callbacks.append(partial(self._finish, on_prepared))

    def _finish(self, on_prepared: OnPrepared, _: simpy.Event) -> None:
        if self._is_stopped:
            return
        self._num_free += 1
        on_prepared()
        self._start()
