"""CPU time of the gateway for a request, in two versions of the package, round by round in turns.

    git worktree add ../before COMMIT
    python -m benchmarks.micro.gateway_versions --before ../before/src [--rounds 30] [--out FILE]

Two processes of `benchmarks.micro.gateway_request` of this checkout, one with each version, take turns of a few hundred
requests. The ratio is the median over pairs of neighbouring rounds: what disturbs one mostly disturbs the other, too.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.gateway_tax import ROOT
from benchmarks.ratios import median_ratio

KINDS = {"text": [], "stream": ["--stream"], "text, fleet": ["--fleet"], "stream, fleet": ["--fleet", "--stream"]}


class Version:
    """The gateway of one version, in a process that waits for its turn."""

    def __init__(self, source: Path, options: list[str]) -> None:
        python = ["env", f"PYTHONPATH={source}", sys.executable]
        command = [*python, "-m", "benchmarks.micro.gateway_request", "--paced", *options]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def round_us(self) -> float:
        """Microseconds for a request, of one round."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """There are no more rounds."""
        self._process.communicate(timeout=30)


def compare(before: Path, options: list[str], num_rounds: int) -> dict[str, Any]:
    """Both versions' rounds for one kind of request."""
    versions = [Version(before, options), Version(ROOT / "src", options)]
    try:
        pairs = [tuple(one.round_us() for one in versions) for _ in range(num_rounds + 1)][1:]
    finally:
        for one in versions:
            one.close()
    before_us, after_us = map(statistics.median, zip(*pairs, strict=True))
    ratio = median_ratio([after for _, after in pairs], [before for before, _ in pairs])
    return {"before_us": before_us, "after_us": after_us, "ratio": ratio, "pairs": pairs}


def main(args: argparse.Namespace) -> None:
    """Measure all kinds of requests."""
    described, found = machine.describe(), {}
    for kind, options in KINDS.items():
        row = found[kind] = compare(args.before.resolve(), [*options, "--requests", str(args.requests)], args.rounds)
        ratio = row["ratio"]
        print(f"{kind:14} {row['before_us']:6.1f} -> {row['after_us']:6.1f} us,", end=" ")
        print(f"x {ratio['median']:.3f} ({ratio['low']:.3f}-{ratio['high']:.3f})", flush=True)
    if args.out is not None:
        args.out.write_text(json.dumps({"machine": described, "kinds": found}, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="the folder that holds the other version's package")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--requests", type=int, default=300, help="of each round")
    parser.add_argument("--out", type=Path)
    main(parser.parse_args())
