"""The machine that a result belongs to."""

import os
import platform
from pathlib import Path

import msgspec

from chiasm import __version__


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What decides what a latency means; `load` is that of the last minute before the start."""

    cpu: str
    num_cores: int
    memory_gib: float
    system: str
    python: str
    chiasm: str
    load: float

    def __str__(self) -> str:
        return (
            f"{self.cpu}, {self.num_cores} cores, {self.memory_gib:g} GiB, {self.system}, Python {self.python}, "
            f"Chiasm {self.chiasm}; load before the start {self.load:.1f}"
        )


def describe_machine() -> Machine:
    """This one."""
    memory_kib = int(_field("/proc/meminfo", "MemTotal", "0 kB").split()[0])
    return Machine(
        cpu=_field("/proc/cpuinfo", "model name", platform.processor() or platform.machine()),
        num_cores=os.cpu_count() or 1,
        memory_gib=round(memory_kib / 2**20, 1),
        system=f"{platform.system()} {platform.release().partition('-')[0]}",
        python=platform.python_version(),
        chiasm=__version__,
        load=round(os.getloadavg()[0], 1),
    )


def _field(file: str, name: str, otherwise: str) -> str:
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return otherwise
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name), otherwise)
