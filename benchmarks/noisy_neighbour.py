"""What a tenant that floods the server costs another: time to first token of a quiet tenant, in four conditions.

alone: the quiet tenant's requests only. at its limit: another tenant asks as often as its limit allows. flood: the
other asks ten times as often, and is refused the rest. Requests come at random times, the same ones in every
condition, with prompts that no other condition has asked; conditions take turns within a round. Text, on the packaged
model.

The flood's client runs on the same cores. What that costs is a condition of its own, refused elsewhere: the same
client sends as often, every tenth request to Chiasm and the others to a process that does nothing but answer 429.
flood / refused elsewhere is what Chiasm's own refusals cost; refused elsewhere / at its limit, what the client does.
Requests that are let in come at the pace of the limit in all three.

A limit lets ten seconds' worth through at once. What is measured begins `--settle-s` after the other tenant has begun,
when that is used up; with `--settle-s 0` it is in the result, too. A run without fairness on the side of the server
is `--unfair`, which gives both tenants one key, without limits.
"""

import argparse
import asyncio
import json
import multiprocessing
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks import machine
from benchmarks.ratios import median_ratio
from benchmarks.refuser import refuse_all
from benchmarks.tenants import TIMEOUT, Server, arrivals_s, first_token_s, served, text_body

RESULTS = Path(__file__).parent / "results/operations"
FLOOD = 10
ALONE, AT_LIMIT, ELSEWHERE, FLOODED = CONDITIONS = ("alone", "at its limit", "refused elsewhere", "flood")
RATIOS = ((FLOODED, AT_LIMIT), (FLOODED, ELSEWHERE), (ELSEWHERE, AT_LIMIT), (FLOODED, ALONE))
SLACK = 1.1

Sending = list[tuple[float, Server]]
"""When a request goes where."""


async def ask(sending: Sending, tenant: str, seed: int, options: argparse.Namespace, began: Any = None) -> list[Any]:
    """Send a request at each time; seconds to first token, None for those refused."""
    bodies = [text_body(seed + number, options.words, options.tokens) for number in range(len(sending))]
    async with aiohttp.ClientSession(timeout=TIMEOUT, connector=aiohttp.TCPConnector(limit=0)) as session:
        started_s = time.perf_counter()
        if began is not None:
            began.set()

        async def one(when_s: float, server: Server, body: dict[str, Any]) -> Any:
            await asyncio.sleep(max(0.0, started_s + when_s - time.perf_counter()))
            return await first_token_s(session, server, tenant, body)

        return await asyncio.gather(*(one(*sent, body) for sent, body in zip(sending, bodies, strict=True)))


def neighbour(sending: Sending, seed: int, options: argparse.Namespace, began: Any, answers: Any) -> None:
    """The loud tenant, in a process of its own."""
    found = asyncio.run(ask(sending, "loud", seed, options, began))
    counted = [
        one for one, (when_s, server) in zip(found, sending, strict=True) if server.keys and when_s >= options.settle_s
    ]
    answers.put((len(counted), sum(one is None for one in counted), sum(one is None for one in found)))


def sendings(condition: str, server: Server, refuser: Server, seed: int, options: argparse.Namespace) -> Sending:
    """What the loud tenant sends: all of the flood's requests, or every tenth to Chiasm and the rest, if anywhere."""
    times_s = arrivals_s(FLOOD * options.limit_per_s, options.settle_s + options.seconds, seed + 1)
    if condition == FLOODED:
        return [(when_s, server) for when_s in times_s]
    if condition == AT_LIMIT:
        return [(when_s, server) for when_s in times_s[::FLOOD]]
    return [(when_s, refuser if number % FLOOD else server) for number, when_s in enumerate(times_s)]


@contextmanager
def loud(sending: Sending, seed: int, options: argparse.Namespace) -> Iterator[Any]:
    """The loud tenant at work; gives where its counts come."""
    context = multiprocessing.get_context("spawn")
    began, answers = context.Event(), context.Queue()
    process = context.Process(target=neighbour, args=(sending, seed, options, began, answers))
    process.start()
    try:
        assert began.wait(120), "the loud tenant does not begin"
        time.sleep(options.settle_s)
        yield answers
        process.join(60)
    finally:
        process.kill()


def run(
    condition: str, server: Server, refuser: Server, seed: int, options: argparse.Namespace
) -> dict[str, float | int]:
    """One condition of one round."""
    quiet: Sending = [(when_s, server) for when_s in arrivals_s(options.quiet_per_s, options.seconds, seed)]
    own_seed = seed + 1000 * CONDITIONS.index(condition)
    if condition == ALONE:
        found, counts = asyncio.run(ask(quiet, "quiet", own_seed, options)), (0, 0, 0)
    else:
        sending = sendings(condition, server, refuser, seed, options)
        with loud(sending, 1_000_000 + 10 * own_seed, options) as answers:
            found, counts = asyncio.run(ask(quiet, "quiet", own_seed, options)), answers.get(timeout=300)
    waits_s = sorted(one for one in found if one is not None)
    assert len(waits_s) == len(found), "the quiet tenant was refused"
    return {
        "p50_ms": 1000 * statistics.median(waits_s),
        "p95_ms": 1000 * waits_s[int(0.95 * (len(waits_s) - 1))],
        "quiet_requests": len(found),
        "loud_requests": counts[0],
        "loud_refused": counts[1],
        "all_refused": counts[2],
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All rounds; conditions in another order each time."""
    limits = "" if options.unfair else f"[tenants.loud]\nmax_requests_per_minute = {60 * options.limit_per_s}\n"
    settings = [f"gateway.max_running_requests={options.slots}", *options.set]
    rounds: dict[str, list[dict[str, float | int]]] = {name: [] for name in CONDITIONS}
    with served(("quiet", "loud"), limits, settings) as server, refuse_all() as address:
        refuser = Server(address, {})
        if options.unfair:
            server.keys["loud"] = server.keys["quiet"]
        for number in range(-1, options.rounds):
            at = number % len(CONDITIONS)
            for name in CONDITIONS[at:] + CONDITIONS[:at]:
                result = run(name, server, refuser, 10_000 * (number + 2), options)
                if number >= 0:  # the first round warms up
                    rounds[name].append(result)
                    print(f"round {number} {name:17} {result}", flush=True)
    ratios = {
        f"{one} / {other}": {
            field: median_ratio([at[field] for at in rounds[one]], [at[field] for at in rounds[other]])
            for field in ("p50_ms", "p95_ms")
        }
        for one, other in RATIOS
    }
    return {"machine": machine.describe(), "options": vars(options), "rounds": rounds, "ratios": ratios}


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks noisy_neighbour", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each condition")
    parser.add_argument("--settle-s", type=float, default=5.0, help="of the loud tenant before what is measured")
    parser.add_argument("--quiet-per-s", type=float, default=3.0)
    parser.add_argument("--limit-per-s", type=float, default=6.0, help="the loud tenant's limit")
    parser.add_argument("--slots", type=int, default=8, help="gateway.max_running_requests")
    parser.add_argument("--words", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.FIELD=VALUE", help="for the server")
    parser.add_argument("--unfair", action="store_true", help="one key and no limit, for comparison")
    parser.add_argument("--name", default="", help="end of the result file's name; none: nothing is written")
    options = parser.parse_args(argv)
    result = measure(options)
    print(json.dumps(result["ratios"], indent=1))
    for base in (AT_LIMIT, ELSEWHERE):
        p95 = result["ratios"][f"{FLOODED} / {base}"]["p95_ms"]
        print(f"p95 of the flood is {p95['median']:.2f} times that {base}; below {SLACK} is wanted")
    if options.name:
        path = RESULTS / f"{time.strftime('%Y-%m-%d')}-{options.name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")
        print(f"written: benchmarks/results/operations/{path.name}")
