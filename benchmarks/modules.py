"""Servers of a benchmark, each a Python module in a process; loads nothing that a client would have to wait for."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import machine

ROOT = Path(__file__).parents[1]


@contextmanager
def process(*command: str, threads: int) -> Iterator[subprocess.Popen]:
    """A Python module in a session of its own."""
    running = subprocess.Popen(
        [sys.executable, "-m", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(ROOT)},  # noqa: TID251 - a child's
        text=True,
        start_new_session=True,
    )
    machine.prefer(running.pid)
    try:
        yield running
    finally:
        running.terminate()
        running.wait(60)
