"""Virtual time."""

from heapq import heappop

import simpy


class VirtualTime(simpy.Environment):
    """simpy's environment with its loop in one piece: a million requests are thirty million events."""

    def pass_until(self, over: simpy.Event) -> None:
        """Let everything happen, in order, until one event has; something must be due until then.

        Raises what that event failed with, or a process for which nobody waits.
        """
        queue = self._queue
        while over.callbacks is not None:  # it is not processed
            assert queue, "an event that does not come is waited for"
            self._now, _, _, event = heappop(queue)
            callbacks = event.callbacks
            event.callbacks = None  # type: ignore[assignment] # as simpy marks what has happened
            for callback in callbacks:
                callback(event)
            if not event.ok and not event.defused:
                failure = event.value
                assert isinstance(failure, BaseException), "what fails has a reason"
                raise failure
