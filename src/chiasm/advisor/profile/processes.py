"""A server's processes on this machine, and what they use of its cores."""

import os
import time
from ipaddress import ip_address
from pathlib import Path
from socket import gethostname

from chiasm.bench.target import Target

_PROC = Path("/proc")
_LISTENS = "0A"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_HERE = ("localhost", "ip6-localhost", gethostname())


class Processes:
    """The process that listens at an address, those below it, and this one as their client."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = pids

    @property
    def names(self) -> tuple[str, ...]:
        """Gateway first, then what it has started, then the client."""
        return (*self._pids, "client")

    @property
    def num_started(self) -> int:
        """Those below the first: workers, and what else it has started."""
        return len(self._pids) - 1

    def cpu_s(self) -> float:
        """CPU seconds that all of them have used so far."""
        return sum(_cpu_s(pid) for pid in self._pids.values()) + time.process_time()


def processes_of(target: Target) -> Processes | None:
    """The processes of a server; None where it is not on this machine, or they are not to be seen from here."""
    pid = _listener(target.port) if _is_here(target.host) else None
    if pid is None:
        return None
    return Processes({"gateway": pid} | {f"worker {n}": one for n, one in enumerate(_below(pid), 1)})


def num_cores() -> int:
    """Cores that this process, and what is started like it, may use."""
    return len(os.sched_getaffinity(0))


def _is_here(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host in _HERE


def _listener(port: int) -> int | None:
    inodes = {inode for name in ("tcp", "tcp6") for inode in _inodes(_PROC / "net" / name, port)}
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for path in _PROC.iterdir():
        if path.name.isdigit() and _has_open(path, wanted):
            return int(path.name)
    return None


def _inodes(table: Path, port: int) -> list[str]:
    try:
        rows = [line.split() for line in table.read_text().splitlines()[1:]]
    except OSError:
        return []
    return [row[9] for row in rows if row[3] == _LISTENS and int(row[1].rpartition(":")[2], 16) == port]


def _has_open(process: Path, wanted: set[str]) -> bool:
    try:
        return any(str(one.readlink()) in wanted for one in (process / "fd").iterdir())
    except OSError:
        return False


def _below(pid: int) -> list[int]:
    """All processes under one, in the order of their start."""
    parents: dict[int, list[int]] = {}
    for path in _PROC.iterdir():
        if path.name.isdigit():
            parents.setdefault(_parent(int(path.name)), []).append(int(path.name))
    found, left = [], [pid]
    while left:
        children = parents.get(left.pop(), [])
        found += children
        left += children
    return sorted(found)


def _stat(pid: int) -> list[str]:
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["?", *["0"] * 20]


def _parent(pid: int) -> int:
    return int(_stat(pid)[1])


def _cpu_s(pid: int) -> float:
    """By the scheduler's nanoseconds, thread by thread; by ticks where the kernel does not tell those."""
    try:
        rows = [one.read_text().split() for one in (_PROC / str(pid) / "task").glob("*/schedstat")]
    except OSError:
        rows = []
    nanoseconds = sum(int(row[0]) for row in rows if row)
    return nanoseconds / 1e9 if nanoseconds else sum(map(int, _stat(pid)[11:13])) / _TICKS_PER_S
