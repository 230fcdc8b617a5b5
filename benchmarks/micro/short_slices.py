"""How late a thread wakes beside processes that compute: with the system's slices and with shorter ones.

Run: python benchmarks/micro/short_slices.py --out benchmarks/notes/short_slices.json
Sleepers run side by side, two of each kind, so that all meet the same load: 4 ms of sleep, a tenth of computing, and so
on. As many processes as there are cores do nothing but compute. Each is in a session of its own, as workers are.
Milliseconds from when a sleeper should have run.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks import machine
from chiasm.settings.slices import shorten_thread_slices, slice_of_thread_s

SLICES_S = (0.0, 0.001, 0.0005, 0.0002)
NAPS, NAP_S = 2500, 0.004


@contextmanager
def computing() -> Iterator[None]:
    """Processes that never wait."""
    command = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(command, start_new_session=True) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def nap(slice_s: float) -> list[float]:
    """How late each nap ended; 0: with the system's slices."""
    assert shorten_thread_slices(slice_s) or not slice_s, "the system grants no slices"
    late = []
    for _ in range(NAPS):
        started_s = time.perf_counter()
        time.sleep(NAP_S)
        late.append(1e3 * (time.perf_counter() - started_s - NAP_S))
        sum(range(3000))
    return late


def side_by_side() -> dict[float, list[float]]:
    """Slice -> how late two sleepers were."""
    found: dict[float, list[float]] = {}
    with computing():
        sleepers = [
            (slice_s, subprocess.Popen([*_command(slice_s)], stdout=subprocess.PIPE, start_new_session=True))
            for slice_s in 2 * SLICES_S
        ]
        for slice_s, sleeper in sleepers:
            found.setdefault(slice_s, []).extend(json.loads(sleeper.communicate(timeout=120)[0]))
    return found


def _command(slice_s: float) -> tuple[str, ...]:
    return sys.executable, __file__, "--nap", str(slice_s)


def summary(late: list[float]) -> dict[str, float]:
    """Mean and percentiles."""
    percentiles = {f"p{share}_ms": float(np.percentile(late, share)) for share in (50, 90, 95, 99)}
    return {"mean_ms": float(np.mean(late)), **percentiles}


def main() -> None:
    """Print all, and write it down where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--nap", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.nap is not None:
        print(json.dumps(nap(options.nap)))
        return
    usual_ms, described = 1e3 * (slice_of_thread_s() or 0.0), machine.describe()
    found = {
        f"{1e3 * slice_s:g} ms" if slice_s else f"the system's, {usual_ms:g} ms": summary(late)
        for slice_s, late in side_by_side().items()
    }
    print(json.dumps(found, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps({"machine": described, "slices": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
