"""Numbers that only grow, gathered until somebody takes them away."""

from collections import defaultdict
from threading import Lock


class Counters:
    """Thread-safe. A name may carry one label behind a colon: 'refused:layout_mismatch'."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._values: defaultdict[str, float] = defaultdict(float)

    def add(self, name: str, value: float = 1) -> None:
        """Count."""
        with self._lock:
            self._values[name] += value

    def take(self) -> dict[str, float]:
        """What was counted since the last time."""
        with self._lock:
            values, self._values = self._values, defaultdict(float)
        return dict(values)
