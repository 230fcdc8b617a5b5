"""How a worker is asked what memory it takes."""

from typing import Protocol, runtime_checkable

import msgspec

from chiasm.errors import EngineError
from chiasm.observability.memory import WorkerMemory

MEMORY_PATH = "/memory"
"""Where a worker's server answers with its `WorkerMemory`, one for each process there."""

_DECODE = msgspec.json.Decoder(tuple[WorkerMemory, ...]).decode


@runtime_checkable
class Weighable(Protocol):
    """A worker that can tell what memory it takes."""

    async def memory(self, timeout_s: float) -> tuple[WorkerMemory, ...]:
        """One entry per process; one with an `error` for each that did not tell in time. Off the event loop."""
        ...


def decode_memory(body: bytes) -> tuple[WorkerMemory, ...]:
    """Read a worker's answer. Raises `EngineError`."""
    try:
        return _DECODE(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise EngineError("The worker's answer about memory cannot be understood") from error
