"""Servers of several topologies side by side, and what their processes use of the machine."""

import os
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gateway_tax import free_port, process, wait_ready

WORKERS = {
    "agg": ("worker 1", "worker 2"),
    "auto": ("worker 1", "worker 2"),
    "e-pd": ("encoder", "prefill and decode"),
    "e-p-d": ("encoder", "prefill", "decode"),
}
_LOOKED_S = 1.2
"""More than two of the gateway's intervals between looks at its workers (`routing.health_interval_s`)."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Server:
    """A running server and its processes: the gateway first, then the workers in the order of their start."""

    topology: str
    address: str
    pid: int

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds used so far, by process."""
        children = sorted(pid for pid in _processes() if _parent(pid) == self.pid)
        names = ("gateway", *WORKERS[self.topology.partition(",")[0]])
        return {name: _cpu_s(pid) for name, pid in zip(names, (self.pid, *children), strict=False)}

    def counters(self) -> dict[str, float]:
        """Those of the workers, summed up, once the gateway has looked at all of them after the last answer."""
        time.sleep(_LOOKED_S)
        with urllib.request.urlopen(f"{self.address}/metrics", timeout=30) as response:
            lines = [line.split() for line in response.read().decode().splitlines() if not line.startswith("#")]
        return {
            name.removeprefix("chiasm_worker_"): float(value)
            for name, value in lines
            if name.startswith("chiasm_worker_")
        }


@contextmanager
def servers(topologies: Sequence[str], *settings: str) -> Iterator[dict[str, Server]]:
    """One server for each, with one thread a worker. Settings of its own follow a name: 'e-pd,routing.forward=raw'."""
    with ExitStack() as stack:
        running = {}
        for name in topologies:
            topology, *own = name.split(",")
            port = free_port()
            words = ["chiasm", "serve", "--json", "--port", str(port), "--topology", topology, "--log-level", "warning"]
            for setting in ("engine.threads=1", *settings, *own):
                words += ["--set", setting]
            started = stack.enter_context(process(*words, threads=1))
            running[name] = Server(name, f"http://127.0.0.1:{port}", started.pid)
            wait_ready(running[name].address)
        yield running


@contextmanager
def used(server: Server) -> Iterator[dict[str, float]]:
    """Filled at the end with each process's share of one core inside the block."""
    before, start_s = server.cpu_s(), time.perf_counter()
    shares: dict[str, float] = {}
    yield shares
    wall_s = time.perf_counter() - start_s
    shares |= {name: round((cpu_s - before.get(name, 0.0)) / wall_s, 4) for name, cpu_s in server.cpu_s().items()}


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _fields(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["?", "0", *["0"] * 20]


def _parent(pid: int) -> int:
    return int(_fields(pid)[1])


def _cpu_s(pid: int) -> float:
    return sum(map(int, _fields(pid)[11:13])) / _TICKS_PER_S
