"""What a supervisor asks of a process, whatever runs in it."""

from collections.abc import Callable
from typing import Protocol

from chiasm.launch.processes.specs import WorkerSpec


class Process(Protocol):
    """A worker's process, started by its constructor. Use from one thread at a time; calls block."""

    name: str
    address: str
    started_s: float

    @property
    def pid(self) -> int:
        """The process's number."""
        ...

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        ...

    def wait_ready(self, progress: Callable[[str, float], None]) -> None:
        """Wait until it takes calls. Raises `EngineStartError` when it does not; it has been stopped then."""
        ...

    async def ended(self) -> None:
        """Wait for its end."""
        ...

    def terminate(self) -> None:
        """Ask it to drain and end."""
        ...

    def wait(self, timeout_s: float) -> bool:
        """Wait until it has ended; False when the time runs out first."""
        ...

    def kill(self) -> None:
        """End it now, with all that it has started."""
        ...


Spawn = Callable[[WorkerSpec], Process]
"""Starts a worker's process. Raises `EngineStartError` where it cannot even be tried."""
