"""CPU time of the gateway for a request, in two versions of the package, in turns.

    git worktree add /tmp/before COMMIT
    python -m benchmarks.micro.gateway_versions --before /tmp/before/src [--turns 5] [--out FILE]

Each turn runs `benchmarks.micro.gateway_request` of this checkout once with each version. What counts is the least
round of a turn, and of these the median: what disturbs a round only ever makes it longer.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks import machine
from benchmarks.gateway_tax import ROOT

KINDS = {"text": [], "stream": ["--stream"], "text, fleet": ["--fleet"], "stream, fleet": ["--fleet", "--stream"]}


def least_us(source: Path, options: list[str]) -> float:
    """Microseconds of the least round, with the package below `source`."""
    python = ["env", f"PYTHONPATH={source}", sys.executable]
    command = [*python, "-m", "benchmarks.micro.gateway_request", *options]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = re.search(r"least ([\d.]+)", run.stdout)
    assert found is not None, run.stdout
    return float(found[1])


def main(args: argparse.Namespace) -> None:
    """Measure all kinds of requests."""
    described = machine.describe()
    versions = {"before": args.before.resolve(), "after": ROOT / "src"}
    found: dict[str, dict[str, list[float]]] = {kind: {name: [] for name in versions} for kind in KINDS}
    for _ in range(args.turns):
        for kind, options in KINDS.items():
            for name, source in versions.items():
                found[kind][name].append(least_us(source, [*options, "--requests", str(args.requests)]))
    rows = {}
    for kind, turns in found.items():
        before_us, after_us = (statistics.median(turns[name]) for name in versions)
        rows[kind] = {"before_us": before_us, "after_us": after_us, "saved": 1 - after_us / before_us, "turns": turns}
        print(f"{kind:14} {before_us:6.1f} -> {after_us:6.1f} us, {rows[kind]['saved']:.0%} less")
    if args.out is not None:
        args.out.write_text(json.dumps({"machine": described, "kinds": rows}, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="the folder that holds the other version's package")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--requests", type=int, default=1000, help="of each of a turn's seven rounds")
    parser.add_argument("--out", type=Path)
    main(parser.parse_args())
