"""Memory as metrics: gauges in bytes of every process, with what they mean."""

from collections.abc import Callable, Iterator, Sequence

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from chiasm.observability.memory import WorkerMemory

_PART = {
    "used_bytes": "What a part of a worker uses now; `kind` is weights, requests, cache or shared.",
    "reserved_bytes": "The most that a part may use, where it has a bound.",
    "peak_bytes": "The most that a part has used, where that is counted.",
}
_PROCESS = {
    "rss_bytes": "Pages of a process in memory, shared ones included.",
    "pss_bytes": "The same, shared pages divided among their users: adds up over processes.",
    "shared_bytes": "Of the resident pages, those of files and shared memory.",
    "peak_rss_bytes": "The most pages in memory since the process began.",
    "swap_bytes": "Pages in swap.",
}
_ALLOCATOR = {
    "taken_bytes": "What the C library's allocator has from the system.",
    "used_bytes": "Of what the allocator has, what it has handed out.",
    "kept_bytes": "Of what the allocator has, what it keeps for what comes.",
}
_DEVICE = {
    "allocated_bytes": "What tensors take on a device.",
    "reserved_bytes": "What this process's allocator has from a device.",
    "peak_allocated_bytes": "The most that tensors have taken on a device.",
    "peak_reserved_bytes": "The most that the allocator has had from a device.",
    "free_bytes": "What a device has left, whoever uses the rest.",
    "total_bytes": "What a device has.",
}


class MemoryLevels(Collector):
    """Shows the answers that the last weighing brought. Workers are as many as the fleet has."""

    def __init__(self, memory: Callable[[], tuple[WorkerMemory, ...]]) -> None:
        self._memory = memory

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        workers = [one for one in self._memory() if one.error is None]
        parts = [((one.worker, part.name, part.kind), part) for one in workers for part in one.parts]
        yield from _gauges("memory", _PART, ["worker", "part", "kind"], parts)
        yield from _gauges("process", _PROCESS, ["worker"], [((one.worker,), one.process) for one in workers])
        yield from _gauges("allocator", _ALLOCATOR, ["worker"], [((one.worker,), one.allocator) for one in workers])
        devices = [((one.worker, device.device), device) for one in workers for device in one.devices]
        yield from _gauges("device", _DEVICE, ["worker", "device"], devices)
        kv = GaugeMetricFamily(
            "chiasm_kv_bytes_per_token", "What a token adds while its request runs.", labels=["worker"]
        )
        kills = CounterMetricFamily(
            "chiasm_oom_kills", "Processes of a worker's control group killed for want of memory.", labels=["worker"]
        )
        for one in workers:
            kv.add_metric([one.worker], one.kv_bytes_per_token)
            if one.process is not None and one.process.num_oom_kills is not None:
                kills.add_metric([one.worker], one.process.num_oom_kills)
        yield kv
        yield kills


def _gauges(
    prefix: str,
    meanings: dict[str, str],
    labels: list[str],
    rows: Sequence[tuple[tuple[str, ...], msgspec.Struct | None]],
) -> Iterator[Metric]:
    for field, meaning in meanings.items():
        family = GaugeMetricFamily(f"chiasm_{prefix}_{field}", meaning, labels=labels)
        for values, row in rows:
            value = getattr(row, field, None)
            if value is not None:
                family.add_metric(values, value)
        yield family
