"""What a worker's process takes of memory, put together."""

from collections.abc import Mapping
from typing import Any

from chiasm.engines.embedded.memory import device_memory
from chiasm.observability.memory import MemoryPart, WorkerMemory, allocator_memory, process_memory


def weigh(worker: str, *, weights: Mapping[str, int], parts: tuple[MemoryPart, ...] = (), **rest: Any) -> WorkerMemory:
    """Weigh this process; takes milliseconds. `rest` are further fields of `WorkerMemory`."""
    fixed = (MemoryPart(name=name, kind="weights", used_bytes=size) for name, size in weights.items())
    return WorkerMemory(
        worker=worker,
        process=process_memory(),
        allocator=allocator_memory(),
        devices=device_memory(),
        parts=(*fixed, *parts),
        **rest,
    )
