"""Where first tokens go that come late: the stages of the slowest texts, and which threads waited for a core."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from chiasm.bench.grid.servers import Server
from chiasm.bench.grid.usage import GATEWAY, processes
from chiasm.bench.metrics.ttft import ttft_s, wire_ttft_s
from chiasm.bench.record import Record

SLOWEST = 0.1
"""Share of the texts that count as slow; as many around the median are the usual ones."""
LATE, OUTSIDE, UNACCOUNTED = "client's lateness", "outside the server", "unaccounted"

Thread = tuple[float, float, int]
Waits = dict[str, Thread]
"""Of a thread or several: seconds on a core, seconds ready to run without one, and how often it got one."""
_NOTHING: Thread = (0.0, 0.0, 0)


def parts_ms(record: Record) -> dict[str, float] | None:
    """What the time to the first token consists of; None without a first token or a receipt."""
    ends_s, wire_s, receipt = ttft_s(record), wire_ttft_s(record), record.receipt
    if ends_s is None or wire_s is None or receipt is None or receipt.ttft_s is None:
        return None
    parts = {LATE: ends_s - wire_s, OUTSIDE: wire_s - receipt.ttft_s, UNACCOUNTED: receipt.unaccounted_s}
    return {name: 1e3 * seconds for name, seconds in (parts | receipt.stages_s).items()}


def stages_of(records: Sequence[Record]) -> dict[str, dict[str, float]]:
    """Mean milliseconds of each part in the usual and in the slowest of them; they add up to the mean first token."""
    found = sorted((parts for one in records if (parts := parts_ms(one))), key=lambda parts: sum(parts.values()))
    count, middle = max(1, round(SLOWEST * len(found))), len(found) // 2
    groups = {"usual": found[middle - count // 2 :][:count], "slowest": found[-count:]}
    names = sorted({name for parts in found for name in parts})
    return {
        group: {name: float(np.mean([one.get(name, 0.0) for one in parts])) for name in names}
        for group, parts in groups.items()
    }


def waits(server: Server) -> Waits:
    """Of each process's first thread, which has its event loop, of the busiest other, and of the rest together."""
    assert server.pid is not None, "it was started here"
    found: Waits = {}
    for name, pid in processes(server.pid, server.topology.processes).items():
        first, *others = _threads(pid) or [_NOTHING]  # a kernel that counts no waits
        others.sort(reverse=True)
        found[f"{name}: event loop"] = first
        if name != GATEWAY and others:
            found[f"{name}: engine"] = others.pop(0)
        found[f"{name}: other threads"] = _total(others)
    return found


def waited(before: Waits, after: Waits) -> Waits:
    """What came to it in between."""
    return {name: _minus(after[name], before.get(name, _NOTHING)) for name in after}


def added(one: Waits, other: Waits) -> Waits:
    """Both together."""
    return {name: _total([one.get(name, _NOTHING), other.get(name, _NOTHING)]) for name in {**one, **other}}


def per_text_ms(found: Waits, count: int) -> dict[str, dict[str, float]]:
    """Milliseconds a text on a core and ready without one, and how long a wait was in the mean."""
    return {
        name: {
            "used_ms": 1e3 * used_s / count,
            "waited_ms": 1e3 * ready_s / count,
            "each_wait_ms": 1e3 * ready_s / max(turns, 1),
        }
        for name, (used_s, ready_s, turns) in found.items()
    }


def _threads(pid: int) -> list[Thread]:
    """The process's first thread, then the others."""
    found = []
    for path in sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda path: int(path.name)):
        try:
            used, ready, count = path.joinpath("schedstat").read_text().split()
        except OSError:  # it has ended
            continue
        found.append((int(used) / 1e9, int(ready) / 1e9, int(count)))
    return found


def _minus(one: Thread, other: Thread) -> Thread:
    return one[0] - other[0], one[1] - other[1], one[2] - other[2]


def _total(threads: Sequence[Thread]) -> Thread:
    return sum(one[0] for one in threads), sum(one[1] for one in threads), sum(one[2] for one in threads)
