"""Memory as tables of the page."""

from collections.abc import Callable, Iterator

from chiasm.observability.memory import WorkerMemory
from chiasm.reporting.blocks import Block, Content, Facts, Table, value
from chiasm.reporting.content import Report
from chiasm.reporting.numbers import NUMBERS

_PROCESS: dict[str, Callable[[WorkerMemory], int | None]] = {
    "rss": lambda one: one.process.rss_bytes if one.process else None,
    "pss": lambda one: one.process.pss_bytes if one.process else None,
    "peak_rss": lambda one: one.process.peak_rss_bytes if one.process else None,
    "swap": lambda one: one.process.swap_bytes if one.process else None,
    "allocator_used": lambda one: one.allocator.used_bytes if one.allocator else None,
    "allocator_kept": lambda one: one.allocator.kept_bytes if one.allocator else None,
    "out_of_memory": lambda one: one.num_out_of_memory if one.error is None else None,
}


def memory_blocks(report: Report) -> Iterator[Block]:
    """Growth with requests, processes, and their parts."""
    if report.growth is not None:
        growth = report.growth
        yield Facts(
            (
                ("requests at once", value("concurrency", growth.num_requests)),
                ("finished", value("finished", growth.num_finished)),
                ("each uses, at most", value("growth_used", growth.used_bytes_per_request)),
                ("each adds resident", value("growth_rss", growth.rss_bytes_per_request)),
                ("stays resident after all", value("growth_kept", growth.kept_rss_bytes)),
            )
        )
    rows: tuple[tuple[Content, ...], ...] = tuple(
        (one.worker + (f" ({one.error})" if one.error else ""), *(value(key, of(one)) for key, of in _PROCESS.items()))
        for one in report.memory
    )
    yield Table(("process", *(NUMBERS[key].title for key in _PROCESS)), rows, "Processes")
    parts = tuple(
        (
            one.worker,
            part.name.replace("_", " "),
            part.kind,
            value("part_used", part.used_bytes),
            value("part_peak", part.peak_bytes),
            value("part_reserved", part.reserved_bytes),
        )
        for one in report.memory
        for part in one.parts
    )
    yield Table(("process", "part", "kind", "used", "most so far", "at most"), parts, "Parts")
