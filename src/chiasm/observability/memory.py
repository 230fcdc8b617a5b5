"""What a process takes of memory: what the system says of it, what its allocator keeps, and what the parts of it know.

The three are views of the same bytes and are kept apart. Parts are what was asked for; a page that was never written
is in no process figure, and a freed one that the allocator keeps is in no part.
"""

import ctypes
import os
from pathlib import Path
from typing import Literal

import msgspec

Kind = Literal["weights", "requests", "cache", "shared"]
"""Fixed; grows with requests under way; kept for reuse and given up for room; read by other processes too."""

_PROC = Path("/proc/self")
_CGROUP_EVENTS = Path("/sys/fs/cgroup/memory.events")
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_KIB = 1024


class MemoryPart(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes with one purpose. `reserved_bytes` is the most it may use, `peak_bytes` has used; None: not known."""

    name: str
    kind: Kind
    used_bytes: int
    reserved_bytes: int | None = None
    peak_bytes: int | None = None


class ProcessMemory(msgspec.Struct, frozen=True, kw_only=True):
    """As the system counts it.

    Attributes:
        rss_bytes: Pages in memory, those included that are shared with other processes.
        pss_bytes: The same with shared pages divided among their users; these add up over processes.
        shared_bytes: Of the resident pages, those that other processes have, too, or that are of shared memory.
        peak_rss_bytes: The most since the process began.
        swap_bytes: Pages in swap.
        num_oom_kills: Processes that the system killed for want of memory in this control group; None if not told.
    """

    rss_bytes: int
    pss_bytes: int | None
    shared_bytes: int
    peak_rss_bytes: int
    swap_bytes: int
    num_oom_kills: int | None = None


class AllocatorMemory(msgspec.Struct, frozen=True, kw_only=True):
    """As the C library's allocator counts it: taken from the system, handed out of that, and kept for what comes."""

    taken_bytes: int
    used_bytes: int
    kept_bytes: int


class DeviceMemory(msgspec.Struct, frozen=True, kw_only=True):
    """An accelerator, as its allocator in this process counts it; free and total are the whole device's."""

    device: str
    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    free_bytes: int
    total_bytes: int
    num_out_of_memory: int


class WorkerMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a server.

    Attributes:
        kv_bytes_per_token: What each token of a prompt or an output adds while its request runs.
        embedding_bytes_per_token: What each visual token adds before that.
        num_out_of_memory: Steps and encodings that ended for want of memory.
        error: Code of what kept it from answering; then all else is empty.
    """

    worker: str
    process: ProcessMemory | None = None
    allocator: AllocatorMemory | None = None
    parts: tuple[MemoryPart, ...] = ()
    devices: tuple[DeviceMemory, ...] = ()
    kv_bytes_per_token: int = 0
    embedding_bytes_per_token: int = 0
    num_out_of_memory: int = 0
    error: str | None = None

    def used_bytes(self, kind: Kind) -> int:
        """What the parts of a kind use together."""
        return sum(part.used_bytes for part in self.parts if part.kind == kind)


def process_memory() -> ProcessMemory | None:
    """This process, from /proc; reading it takes milliseconds in a large one. None where there is no /proc."""
    try:
        status = _fields((_PROC / "status").read_text("ascii", "replace"))
    except OSError:
        return None
    try:
        pss_bytes = _fields((_PROC / "smaps_rollup").read_text("ascii", "replace")).get("Pss")
    except OSError:  # an old kernel, or one that forbids it
        pss_bytes = None
    return ProcessMemory(
        rss_bytes=status.get("VmRSS", 0),
        pss_bytes=pss_bytes,
        shared_bytes=status.get("RssFile", 0) + status.get("RssShmem", 0),
        peak_rss_bytes=status.get("VmHWM", 0),
        swap_bytes=status.get("VmSwap", 0),
        num_oom_kills=_num_oom_kills(),
    )


def memory_limit_bytes() -> int:
    """The machine's memory, or what its container may have of it."""
    machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = _CGROUP_LIMIT.read_text("ascii").strip()
    except OSError:
        return machine_bytes
    return min(machine_bytes, int(limit)) if limit.isdigit() else machine_bytes  # "max": all of it


def allocator_memory() -> AllocatorMemory | None:
    """The C library's allocator; None where it is not glibc 2.33 or newer."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        return None
    mallinfo.restype = _Mallinfo
    info = mallinfo()
    return AllocatorMemory(
        taken_bytes=info.arena + info.hblkhd, used_bytes=info.uordblks + info.hblkhd, kept_bytes=info.fordblks
    )


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of malloc.h."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


def _fields(text: str) -> dict[str, int]:
    """The lines `Name: number kB`, in bytes."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        value, _, unit = rest.strip().partition(" ")
        if unit == "kB" and value.isdigit():
            found[name] = int(value) * _KIB
    return found


def _num_oom_kills() -> int | None:
    try:
        lines = _CGROUP_EVENTS.read_text("ascii").splitlines()
    except OSError:
        return None
    counts = dict(line.split() for line in lines if line.count(" ") == 1)
    return int(counts["oom_kill"]) if counts.get("oom_kill", "").isdigit() else None
