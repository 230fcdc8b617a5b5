"""Waiting for conditions instead of for time to pass."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path


async def until(condition: Callable[[], object], timeout_s: float = 60) -> None:
    """Wait for something to come true."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it never happened"
        await asyncio.sleep(0.001)


class NewThreads:
    """The system's threads of this process that were not there when this was made, those of C libraries included."""

    def __init__(self) -> None:
        self._before = _thread_ids()

    def __len__(self) -> int:
        return len(_thread_ids() - self._before)

    def until_gone(self, timeout_s: float = 60) -> None:
        """Wait for the end of all of them: a thread that was joined is listed for a moment longer."""
        deadline_s = time.monotonic() + timeout_s
        while len(self):
            assert time.monotonic() < deadline_s, f"{len(self)} threads are left"
            time.sleep(0.005)


def _thread_ids() -> set[str]:
    return {path.name for path in Path("/proc/self/task").iterdir()}
