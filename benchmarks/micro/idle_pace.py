"""How fast cores are that have just slept, against cores that were kept awake, on a machine with nothing to do.

    python -m benchmarks.micro.idle_pace --json FILE

The same arithmetic, some ten times a second with sleep between, in turns with cores that may sleep and cores that may
not (`chiasm.bench.awake`; needs root). Each figure is the median over turns of a percentile within a turn.
"""

import argparse
import json
import time
from contextlib import nullcontext
from pathlib import Path
from statistics import median, quantiles

from benchmarks import machine
from chiasm.bench.awake import cores_awake

LOOP = 200_000
PAUSE_S = 0.1
PERCENTILES = (10, 50, 90)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.micro.idle_pace", description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each turn")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    turns: dict[str, list[dict[int, float]]] = {"may sleep": [], "awake": []}
    for _ in range(options.turns):
        for name, some in turns.items():
            with cores_awake() if name == "awake" else nullcontext():
                some.append(_percentiles_ms(options.seconds))
    found = {name: {of: median(one[of] for one in some) for of in PERCENTILES} for name, some in turns.items()}
    for name, figures in found.items():
        print(f"{name:10}", ", ".join(f"p{of} {figures[of]:.1f} ms" for of in PERCENTILES))
    if options.json:
        options.json.write_text(json.dumps({"machine": machine.describe(), "loop_ms": found}, indent=1) + "\n")


def _percentiles_ms(seconds: float) -> dict[int, float]:
    until_s, took_ms = time.monotonic() + seconds, []
    while time.monotonic() < until_s:
        started_s = time.perf_counter()
        sum(number & 7 for number in range(LOOP))
        took_ms.append(1e3 * (time.perf_counter() - started_s))
        time.sleep(PAUSE_S)
    cuts = quantiles(took_ms, n=100)
    return {of: cuts[of - 1] for of in PERCENTILES}


if __name__ == "__main__":
    main()
