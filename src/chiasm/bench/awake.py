"""Keeping the machine's cores awake while something is measured.

A core that has nothing to do sleeps. In a virtual machine its host lends it to others meanwhile, and for a while after
it wakes it works at a lower pace (benchmarks/micro/idle_pace.py): what is measured at a low load then depends on how
long the machine slept before. Linux keeps cores awake for as long as somebody holds a file open (PM QoS).
"""

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chiasm.errors import InvalidSettingError

LATENCY = Path("/dev/cpu_dma_latency")
_NO_SLEEP = struct.pack("=i", 0)
"""Microseconds that waking up may take."""


@contextmanager
def cores_awake(file: Path = LATENCY) -> Iterator[None]:
    """Let no core sleep until the end of the block. Cores that wait count as idle all the same.

    Raises:
        InvalidSettingError: The system does not allow it (root may), or knows nothing of it.
    """
    try:
        held = os.open(file, os.O_WRONLY)
    except OSError as error:
        raise InvalidSettingError(
            f"Cores cannot be kept awake: '{file}': {error.strerror}",
            hint="Run as root on Linux, or measure with cores that may sleep",
        ) from error
    try:
        os.write(held, _NO_SLEEP)
        yield
    finally:
        os.close(held)
