"""Where routing takes its time from, so that a test or a simulator can be the one to say what time it is."""

import time
from typing import Protocol


class Clock(Protocol):
    """Two readings. Waiting is the event loop's business: whoever replaces the clock brings a loop that agrees."""

    def now_s(self) -> float:
        """Monotonic time; its zero means nothing."""
        ...

    def unix_s(self) -> float:
        """Time of day, in which handles expire."""
        ...


class SystemClock:
    """This machine's clocks."""

    def now_s(self) -> float:
        """See `Clock`."""
        return time.perf_counter()

    def unix_s(self) -> float:
        """See `Clock`."""
        return time.time()
