"""Virtual time, and processes in it that cost little: a million requests are twenty million events."""

from collections.abc import Callable, Generator, Sequence
from functools import partial
from heapq import heappop
from typing import Any, Generic, TypeVar

import simpy

R = TypeVar("R")

Process = Generator[simpy.Event, Any, None]
"""What takes simulated time."""


class VirtualTime(simpy.Environment):
    """simpy's environment with its loop in one piece, events that may be hastened, and processes that are no events.

    It is also the clock that routing asks.
    """

    def now_s(self) -> float:
        """See `chiasm.routing.clock.Clock`."""
        return self._now

    def unix_s(self) -> float:
        """Likewise: the simulation begins in 1970."""
        return self._now

    def pass_until(self, over: simpy.Event) -> None:
        """Let everything happen, in order, until one event has; something must be due until then.

        Raises what that event failed with, or a process for which nobody waits.
        """
        queue = self._queue
        while over.callbacks is not None:  # it is not processed
            assert queue, "an event that does not come is waited for"
            self._now, _, _, event = heappop(queue)
            callbacks = event.callbacks
            if callbacks is None:
                continue  # it was hastened
            event.callbacks = None  # type: ignore[assignment] # as simpy marks what has happened
            for callback in callbacks:
                callback(event)
            if not event.ok and not event.defused:
                failure = event.value
                assert isinstance(failure, BaseException), "what fails has a reason"
                raise failure

    def step(self) -> None:
        """As simpy's, which `run` calls; passes over what was hastened."""
        while self._queue and self._queue[0][3].callbacks is None:
            heappop(self._queue)
        super().step()

    def hasten(self, event: simpy.Event) -> None:
        """Let an event that is due later happen now instead."""
        self.schedule(event)

    def begin(self, process: Process) -> None:
        """Run a process for whose end nobody waits, at once up to its first wait. Its errors end the simulation."""
        _Course(process, _nobody_waits).begin()

    def together(self, processes: Sequence[Generator[simpy.Event, Any, R]]) -> simpy.Event:
        """Run processes side by side; the event's value is what they returned, in their order."""
        done, found = self.event(), [None] * len(processes)
        num_left = len(processes)

        def end(place: int, value: Any) -> None:
            nonlocal num_left
            found[place] = value
            num_left -= 1
            if not num_left:
                done.succeed(found)

        for place, process in enumerate(processes):
            _Course(process, partial(end, place)).begin()
        return done


class _Course(Generic[R]):
    """Drives a process. simpy's own are events, whose beginning and end take two more turns of the loop."""

    __slots__ = ("_on_end", "_process")

    def __init__(self, process: Generator[simpy.Event, Any, R], on_end: Callable[[R], None]) -> None:
        self._process = process
        self._on_end = on_end

    def begin(self) -> None:
        try:
            event = next(self._process)
        except StopIteration as end:
            self._on_end(end.value)
        else:
            self._wait(event)

    def _wait(self, event: simpy.Event) -> None:
        if event.callbacks is not None:
            event.callbacks.append(self._go_on)
        else:
            self._go_on(event)

    def _go_on(self, event: simpy.Event) -> None:
        try:
            if event.ok:
                event = self._process.send(event.value)
            else:
                event.defused = True
                error = event.value
                assert isinstance(error, BaseException), "what fails has a reason"
                event = self._process.throw(error.with_traceback(None))  # others that wait for it get the same one
        except StopIteration as end:
            self._on_end(end.value)
        else:
            self._wait(event)


def _nobody_waits(_: None) -> None:
    """Nothing follows."""
