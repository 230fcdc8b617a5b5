"""What a server's processes use of the machine, where it is this one."""

import os
from collections.abc import Sequence
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
GATEWAY = "gateway"


def cpu_s(pid: int, names: Sequence[str]) -> dict[str, float]:
    """CPU seconds used so far: of the server itself, and of its children in the order of their start, with theirs.

    Children without a name of their own are worker 1, worker 2, and so on.
    """
    below = _children()
    workers = _named(sorted(below.get(pid, ())), names)
    return {GATEWAY: _cpu_s(pid)} | {name: _tree_cpu_s(one, below) for name, one in workers.items()}


def processes(pid: int, names: Sequence[str]) -> dict[str, int]:
    """The process ids of what `cpu_s` counts, by the same names."""
    return {GATEWAY: pid} | _named(sorted(_children().get(pid, ())), names)


def shares(before: dict[str, float], after: dict[str, float], wall_s: float) -> dict[str, float]:
    """Of one core, by process."""
    return {name: round((used_s - before.get(name, 0.0)) / max(wall_s, 1e-9), 4) for name, used_s in after.items()}


def _named(children: Sequence[int], names: Sequence[str]) -> dict[str, int]:
    named = [*names, *(f"worker {number + 1}" for number in range(len(names), len(children)))]
    return dict(zip(named, children, strict=False))


def _children() -> dict[int, list[int]]:
    """Of every process."""
    found: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            found.setdefault(_parent(int(path.name)), []).append(int(path.name))
    return found


def _tree_cpu_s(pid: int, below: dict[int, list[int]]) -> float:
    """Engines of other makes compute in processes of their own, some levels down."""
    return _cpu_s(pid) + sum(_tree_cpu_s(child, below) for child in below.get(pid, ()))


def _fields(pid: int) -> list[str]:
    """The fields of its line after the name; zeros for one that has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["?", *["0"] * 20]


def _parent(pid: int) -> int:
    return int(_fields(pid)[1])


def _cpu_s(pid: int) -> float:
    return sum(map(int, _fields(pid)[11:13])) / _TICKS_PER_S
