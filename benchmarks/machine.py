"""What a result must say about the machine, and keeping other work away from a measurement."""

import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from chiasm.bench.awake import LATENCY


def describe() -> dict[str, Any]:
    """CPU, memory, load and software that decide what a number means."""
    info = Path("/proc/cpuinfo").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in info if ":" in line)
    flags = next(value for key, value in fields.items() if key.strip() == "flags").split()
    memory = Path("/proc/meminfo").read_text().split("\n", 1)[0].split()[1]
    return {
        "cpu": next(value.strip() for key, value in fields.items() if key.strip() == "model name"),
        "num_cores": os.cpu_count(),
        "instructions": [flag for flag in ("avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags],
        "memory_gib": round(int(memory) / 2**20, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load": list(os.getloadavg()),
        "cores_awake": _are_cores_awake(),
        "commit": _commit(),
        "command": " ".join(["python", *(_placeless(word) for word in sys.orig_argv[1:])]),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def _are_cores_awake() -> bool:
    """Whether this process keeps them from sleeping."""
    return any(link.is_symlink() and link.readlink() == LATENCY for link in Path("/proc/self/fd").iterdir())


def _placeless(word: str) -> str:
    """A word of a command line without the folders that only this machine has."""
    return Path(word).name if word.startswith("/") else word


def _commit() -> str:
    root = Path(__file__).parent
    run = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True, timeout=10, check=False
    )
    return run.stdout.strip()


def prefer(pid: int) -> bool:
    """Give the process's session priority over the rest of the machine; False where that is not allowed."""
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text("-20")
        return True
    return False


@contextmanager
def paused(pid_file: Path | None) -> Iterator[None]:
    """Stop the process that a file names, and let it go on afterwards."""
    pid = int(pid_file.read_text()) if pid_file else None
    try:
        if pid:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        if pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
