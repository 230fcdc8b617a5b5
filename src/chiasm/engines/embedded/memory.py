"""What the engine's tensors and devices take of memory."""

from typing import Any

import torch

from chiasm.observability.memory import DeviceMemory


def module_bytes(module: Any) -> int:
    """Bytes of a module's weights, also of those that it keeps as plain attributes; what is shared counts once."""
    sizes: dict[int, int] = {}
    for part in module.modules():
        for tensor in (*part._parameters.values(), *part._buffers.values(), *vars(part).values()):  # noqa: SLF001
            if isinstance(tensor, torch.Tensor):
                place, size = _storage(tensor)
                sizes[place] = size
    return sum(sizes.values())


def _storage(tensor: torch.Tensor) -> tuple[int, int]:
    """Where a tensor's memory is and what it takes; oneDNN's own layouts tell only their shape."""
    if tensor.is_mkldnn:
        return id(tensor), tensor.numel() * tensor.itemsize
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def is_out_of_memory(error: Exception) -> bool:
    """Whether this is how the C code, torch's CPU allocator or a device's say that there is no memory left."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def device_memory() -> tuple[DeviceMemory, ...]:
    """The CUDA devices that this process uses; empty where it uses none."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return ()
    return tuple(_device(number) for number in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(number))


def _device(number: int) -> DeviceMemory:
    free_bytes, total_bytes = torch.cuda.mem_get_info(number)
    stats = torch.cuda.memory_stats(number)
    return DeviceMemory(
        device=f"cuda:{number}",
        allocated_bytes=stats["allocated_bytes.all.current"],
        reserved_bytes=stats["reserved_bytes.all.current"],
        peak_allocated_bytes=stats["allocated_bytes.all.peak"],
        peak_reserved_bytes=stats["reserved_bytes.all.peak"],
        free_bytes=free_bytes,
        total_bytes=total_bytes,
        num_out_of_memory=stats["num_ooms"],
    )
