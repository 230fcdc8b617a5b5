"""Questions about topologies on equal resources, beside the grid of `chiasm bench grid`.

mixed: does text wait for pictures? answers: which way answers first under load? repeat: is another question about the
same picture cheap? forwarding: what does metadata save against the media themselves? stages: where does the time to the
first token go? Every topology has two worker processes with one thread each.
"""

import argparse
import asyncio
import json
import time
from typing import Any

from benchmarks import machine
from benchmarks.epd.answers import answers
from benchmarks.epd.forwarding import forwarding
from benchmarks.epd.mixed import mixed
from benchmarks.epd.repeat import repeat
from benchmarks.epd.requests import SIDE_OF_TOKENS
from benchmarks.epd.stages import stages
from benchmarks.gateway_tax import RESULTS
from chiasm.errors import ChiasmError

SCENARIOS = {"mixed": mixed, "answers": answers, "repeat": repeat, "forwarding": forwarding, "stages": stages}
TOPOLOGIES = ("agg", "e-pd", "auto")


def parsed(argv: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks topologies",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--scenario", nargs="+", choices=SCENARIOS, required=True, help="which questions")
    parser.add_argument("--topologies", nargs="+", default=TOPOLOGIES, choices=(*TOPOLOGIES, "e-p-d"))
    parser.add_argument("--tokens", type=int, default=64, choices=SIDE_OF_TOKENS, help="visual tokens of a picture")
    parser.add_argument(
        "--images",
        type=int,
        nargs="+",
        help="of forwarding: how many pictures; default 1 4 8; of answers: how many in each request; default none",
    )
    parser.add_argument("--output", type=int, default=128, help="of answers: tokens of each")
    parser.add_argument(
        "--load", type=float, default=0.6, help="of mixed and answers: share of the first topology's capacity"
    )
    parser.add_argument(
        "--against",
        nargs="+",
        action="append",
        metavar="SETTING=VALUE",
        help="of mixed, answers, repeat: each topology also with these; may be repeated for further sets of settings",
    )
    parser.add_argument("--requests", type=int, help="how many of each kind; default: some minutes in all")
    parser.add_argument("--name", help="end of the result file's name; default epd-SCENARIO; of one question only")
    args = parser.parse_args(argv)
    if args.name and len(args.scenario) > 1:
        parser.error("--name is for one question: each has a result file of its own")
    if "answers" in args.scenario and len(args.images or ()) > 1:
        parser.error("answers has as many pictures in every request: give one number")
    return args


def main(argv: list[str]) -> None:
    """Answer the questions one after the other; each has one result file."""
    args = parsed(argv)
    for scenario in args.scenario:
        _answer(scenario, args)


def _answer(scenario: str, args: argparse.Namespace) -> None:
    result: dict[str, Any] = {"machine": machine.describe(), "scenario": scenario}
    try:
        result |= asyncio.run(SCENARIOS[scenario](args))
    except ChiasmError as error:
        raise SystemExit(f"Error: {error.message}") from error
    path = RESULTS / f"{time.strftime('%Y-%m-%d')}-{args.name or f'epd-{scenario}'}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    print(f"written: benchmarks/results/{path.name}")
