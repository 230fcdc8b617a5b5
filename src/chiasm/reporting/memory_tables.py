"""Memory as tables for a terminal."""

from collections.abc import Iterator, Sequence

from rich.table import Table

from chiasm.observability.memory import WorkerMemory
from chiasm.reporting.growth import Growth
from chiasm.reporting.units import in_bytes


def process_table(workers: Sequence[WorkerMemory]) -> Table:
    """One line per process: what the system, its allocator and devices count."""
    table = Table("process", box=None, pad_edge=False, title="Processes", title_justify="left")
    for name in ("resident", "share of it", "most so far", "swap", "allocator uses", "keeps", "out of memory"):
        table.add_column(name, justify="right")
    for one in workers:
        process, allocator = one.process, one.allocator
        if process is None:
            table.add_row(one.worker, one.error or "not told")
            continue
        table.add_row(
            one.worker,
            in_bytes(process.rss_bytes),
            in_bytes(process.pss_bytes),
            in_bytes(process.peak_rss_bytes),
            in_bytes(process.swap_bytes),
            in_bytes(allocator.used_bytes if allocator else None),
            in_bytes(allocator.kept_bytes if allocator else None),
            str(one.num_out_of_memory),
        )
    return table


def part_table(workers: Sequence[WorkerMemory]) -> Table:
    """One line per part: what it uses, has used, and may use."""
    table = Table("process", "part", "kind", box=None, pad_edge=False, title="Parts", title_justify="left")
    for name in ("used", "most so far", "at most"):
        table.add_column(name, justify="right")
    for one in workers:
        for part in one.parts:
            sizes = (part.used_bytes, part.peak_bytes, part.reserved_bytes)
            table.add_row(one.worker, part.name, part.kind, *map(in_bytes, sizes))
        for device in one.devices:
            sizes = (device.allocated_bytes, device.peak_allocated_bytes, device.reserved_bytes)
            table.add_row(one.worker, device.device, "device", *map(in_bytes, sizes))
    return table


def growth_lines(growth: Growth) -> Iterator[str]:
    """What was measured, in words."""
    yield ""
    yield f"{growth.num_finished} of {growth.num_requests} requests finished; memory was read {growth.num_looks} times."
    yield f"Each used {in_bytes(growth.used_bytes_per_request)} of the parts for requests, at most,"
    yield f"and added {in_bytes(growth.rss_bytes_per_request)} of resident pages while all ran."
    kept, cached = in_bytes(growth.kept_rss_bytes), in_bytes(growth.kept_cache_bytes)
    yield f"After them, {kept} more stayed resident; caches had gained {cached}."
