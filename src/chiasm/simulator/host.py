"""The cores of a host that workers, gateway and client share: work beyond them goes on more slowly, all of it alike."""

from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

import simpy

from chiasm.simulator.calibration import Sharing
from chiasm.simulator.clock import VirtualTime


class Work(Protocol):
    """Something that takes time on some cores."""

    @property
    def done(self) -> simpy.Event:
        """Happens at its end."""

    @property
    def progress_s(self) -> float:
        """Seconds of it that are done, in seconds of undisturbed work."""

    def left_s(self, until_s: float) -> float:
        """Undisturbed seconds that are left until so many are done."""

    def took_s(self, seconds: float) -> float:
        """How long it took, now that its undisturbed `seconds` are done."""

    @property
    def is_over(self) -> bool:
        """Whether all of it is done, also where it was cut short just then."""

    def cut_short(self) -> None:
        """Let `done` happen now. Who waited for it abandons it then, unless it is over. Harmless after its end."""

    def abandon(self) -> None:
        """Take it off the cores before its end."""


class Cores(Protocol):
    """Where work is done."""

    def work(self, seconds: float, cores: float = 1.0) -> Work:
        """Begin work that takes so many seconds when undisturbed, with so many cores in use meanwhile."""


class OwnCores:
    """Cores enough for everything: work takes the time that it takes. Costs no more than a timer."""

    def __init__(self, env: VirtualTime) -> None:
        self._env = env

    def work(self, seconds: float, _: float = 1.0) -> Work:
        """See `Cores`."""
        return _Timed(self._env, seconds)


class _Timed(simpy.Event):
    """A timer that is work, too, so that a simulation of a thousand workers has one object where it needs one."""

    env: VirtualTime

    def __init__(self, env: VirtualTime, seconds: float) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        self._started_s = now_s = env.now
        self._end_s = now_s + seconds
        env.schedule(self, delay=seconds)

    @property
    def done(self) -> simpy.Event:
        return self

    @property
    def progress_s(self) -> float:
        return float(self.env.now - self._started_s)

    def left_s(self, until_s: float) -> float:
        return float(self._started_s + until_s - self.env.now)

    def took_s(self, seconds: float) -> float:
        return seconds

    @property
    def is_over(self) -> bool:
        return bool(self.env.now >= self._end_s)

    def cut_short(self) -> None:
        if self.callbacks is not None:
            self.env.hasten(self)

    def abandon(self) -> None:
        """A timer that nobody waits for does no harm."""


class SharedCores:
    """Processor sharing: while more cores are asked for than there are, each gets the same share of what it asks for.

    All work goes on at one rate, so a single clock of progress and a heap of its ends do: work that begins or ends
    costs the logarithm of how much there is.
    """

    def __init__(self, env: simpy.Environment, sharing: Sharing) -> None:
        """Take a host's cores."""
        self._env = env
        self._sharing = sharing
        self._progress_s = 0.0  # of any work that was there all the time, at `_seen_s`
        self._seen_s = 0.0
        self._cores = 0.0
        self._rate = 1.0
        self._ends: list[tuple[float, int, _Shared]] = []
        self._numbers = count()
        self._timer = 0

    @property
    def now_s(self) -> float:
        """The simulation's time."""
        return float(self._env.now)

    @property
    def progress_s(self) -> float:
        """The clock of progress, now."""
        return self._progress_s + self._rate * (self._env.now - self._seen_s)

    def work(self, seconds: float, cores: float = 1.0) -> Work:
        """See `Cores`."""
        work = _Shared(self, cores, self.progress_s)
        heappush(self._ends, (work.started_s + seconds, next(self._numbers), work))
        self._change(cores)
        return work

    def leave(self, work: "_Shared") -> None:
        """Take work off; what is left of it in the heap goes with its turn."""
        self._change(-work.cores)

    def _change(self, cores: float) -> None:
        self._progress_s, self._seen_s = self.progress_s, self._env.now
        self._cores = max(self._cores + cores, 0.0)
        self._rate = 1.0 / self._sharing.slowdown_at(self._cores)
        self._set_timer()

    def _set_timer(self) -> None:
        while self._ends and self._ends[0][2].is_over:
            heappop(self._ends)
        self._timer += 1
        if self._ends:
            left_s = max(self._ends[0][0] - self._progress_s, 0.0) / self._rate
            self._env.timeout(left_s).callbacks.append(partial(self._ring, self._timer))

    def _ring(self, timer: int, _: simpy.Event) -> None:
        if timer != self._timer:
            return
        self._progress_s, self._seen_s = max(self.progress_s, self._ends[0][0]), self._env.now
        cores = 0.0
        while self._ends and (self._ends[0][2].is_over or self._ends[0][0] <= self._progress_s):
            work = heappop(self._ends)[2]
            if not work.is_over:
                work.is_over = True
                work.cut_short()
                cores += work.cores
        self._change(-cores)

    def event(self) -> simpy.Event:
        """One of the same time."""
        return self._env.event()


class _Shared:
    __slots__ = ("_begun_s", "_done", "_host", "cores", "is_over", "started_s")

    def __init__(self, host: SharedCores, cores: float, started_s: float) -> None:
        self._host = host
        self.cores = cores
        self.started_s = started_s
        self._begun_s = host.now_s
        self.is_over = False
        self._done = host.event()

    @property
    def done(self) -> simpy.Event:
        return self._done

    @property
    def progress_s(self) -> float:
        return self._host.progress_s - self.started_s

    def left_s(self, until_s: float) -> float:
        return until_s - self.progress_s

    def took_s(self, _: float) -> float:
        return self._host.now_s - self._begun_s

    def cut_short(self) -> None:
        if not self._done.triggered:
            self._done.succeed()

    def abandon(self) -> None:
        if not self.is_over:
            self.is_over = True
            self._host.leave(self)
