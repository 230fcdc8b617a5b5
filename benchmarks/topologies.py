"""Questions about topologies on equal resources, beside the grid of `chiasm bench grid`.

mixed: does text wait for pictures? repeat: is another question about the same picture cheap? forwarding: what does
metadata save against the media themselves? stages: where does the time to the first token go? Every topology has two
worker processes with one thread each.
"""

import argparse
import asyncio
import json
import time
from typing import Any

from benchmarks import machine
from benchmarks.epd.forwarding import forwarding
from benchmarks.epd.mixed import mixed
from benchmarks.epd.repeat import repeat
from benchmarks.epd.requests import SIDE_OF_TOKENS
from benchmarks.epd.stages import stages
from benchmarks.gateway_tax import RESULTS
from chiasm.errors import ChiasmError

SCENARIOS = {"mixed": mixed, "repeat": repeat, "forwarding": forwarding, "stages": stages}
TOPOLOGIES = ("agg", "e-pd", "auto")


def parsed(argv: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks topologies",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--scenario", choices=SCENARIOS, required=True, help="which question")
    parser.add_argument("--topologies", nargs="+", default=TOPOLOGIES, choices=(*TOPOLOGIES, "e-p-d"))
    parser.add_argument("--tokens", type=int, default=64, choices=SIDE_OF_TOKENS, help="visual tokens of a picture")
    parser.add_argument("--images", type=int, nargs="+", help="of forwarding: how many pictures; default 1 4 8")
    parser.add_argument("--load", type=float, default=0.6, help="of mixed: share of the first topology's capacity")
    parser.add_argument("--against", nargs="+", metavar="SETTING=VALUE", help="of mixed: each topology also with these")
    parser.add_argument("--requests", type=int, help="how many of each kind; default: some minutes in all")
    parser.add_argument("--name", help="end of the result file's name; default epd-SCENARIO")
    args = parser.parse_args(argv)
    args.name = args.name or f"epd-{args.scenario}"
    return args


def main(argv: list[str]) -> None:
    """Answer one question and write one result file."""
    args = parsed(argv)
    result: dict[str, Any] = {"machine": machine.describe(), "scenario": args.scenario}
    try:
        result |= asyncio.run(SCENARIOS[args.scenario](args))
    except ChiasmError as error:
        raise SystemExit(f"Error: {error.message}") from error
    path = RESULTS / f"{time.strftime('%Y-%m-%d')}-{args.name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    print(f"written: benchmarks/results/{path.name}")
