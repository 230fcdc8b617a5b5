"""What a tenant that floods the server costs another: time to first token of a quiet tenant, in three conditions.

alone: the quiet tenant's requests only. at its limit: another tenant asks as often as its limit allows. flood: the
other asks ten times as often, and is refused the rest. Requests come at random times, the same ones in every
condition, with prompts that no other condition has asked; conditions take turns within a round. Text, on the packaged
model.

The flood's client runs on the same cores, so that its own cost is in the result, too; a run without any server side
fairness says what that is: `--unfair` gives both tenants one key, without limits.
"""

import argparse
import asyncio
import json
import multiprocessing
import statistics
import time
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks import machine
from benchmarks.ratios import median_ratio
from benchmarks.tenants import TIMEOUT, Server, arrivals_s, first_token_s, served, text_body

RESULTS = Path(__file__).parent / "results/operations"
FLOOD = 10
CONDITIONS = {"alone": 0, "at its limit": 1, "flood": FLOOD}
SLACK = 1.1


async def ask(server: Server, tenant: str, times_s: list[float], seed: int, options: argparse.Namespace) -> list[Any]:
    """Send a request at each time; seconds to first token, None for those refused."""
    started_s = time.perf_counter()
    async with aiohttp.ClientSession(timeout=TIMEOUT, connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one(number: int, when_s: float) -> Any:
            await asyncio.sleep(max(0.0, started_s + when_s - time.perf_counter()))
            body = text_body(seed + number, options.words, options.tokens)
            return await first_token_s(session, server, tenant, body)

        return await asyncio.gather(*(one(number, when_s) for number, when_s in enumerate(times_s)))


def neighbour(server: Server, times_s: list[float], seed: int, options: argparse.Namespace, answers: Any) -> None:
    """The loud tenant, in a process of its own."""
    found = asyncio.run(ask(server, "loud", times_s, seed, options))
    answers.put((len(found), sum(one is None for one in found)))


def run(server: Server, times: int, seed: int, options: argparse.Namespace) -> dict[str, float]:
    """One condition of one round."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    loud = None
    if times:
        loud_s = arrivals_s(times * options.limit_per_s, options.seconds, seed + 1)
        loud = context.Process(target=neighbour, args=(server, loud_s, seed + 1_000_000, options, answers))
        loud.start()
        time.sleep(options.head_start_s)
    quiet_s = arrivals_s(options.quiet_per_s, options.seconds, seed)
    found = asyncio.run(ask(server, "quiet", quiet_s, seed + 500 * times, options))
    sent, refused = answers.get(timeout=300) if loud else (0, 0)
    if loud:
        loud.join(60)
    waits_s = sorted(one for one in found if one is not None)
    assert len(waits_s) == len(found), "the quiet tenant was refused"
    return {
        "p50_ms": 1000 * statistics.median(waits_s),
        "p95_ms": 1000 * waits_s[int(0.95 * (len(waits_s) - 1))],
        "quiet_requests": len(found),
        "loud_requests": sent,
        "loud_refused": refused,
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All rounds; conditions in another order each time."""
    limits = "" if options.unfair else f"[tenants.loud]\nmax_requests_per_minute = {60 * options.limit_per_s}\n"
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in CONDITIONS}
    with served(("quiet", "loud"), limits, [f"gateway.max_running_requests={options.slots}"]) as server:
        if options.unfair:
            server.keys["loud"] = server.keys["quiet"]
        for number in range(-1, options.rounds):
            names = list(CONDITIONS)
            for name in names[number % 3 :] + names[: number % 3]:
                result = run(server, CONDITIONS[name], 10_000 * (number + 2), options)
                if number >= 0:  # the first round warms up
                    rounds[name].append(result)
                    print(f"round {number} {name:13} {result}", flush=True)
    ratios = {
        f"flood / {base}": {
            field: median_ratio([one[field] for one in rounds["flood"]], [one[field] for one in rounds[base]])
            for field in ("p50_ms", "p95_ms")
        }
        for base in ("alone", "at its limit")
    }
    return {"machine": machine.describe(), "options": vars(options), "rounds": rounds, "ratios": ratios}


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks noisy_neighbour", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each condition")
    parser.add_argument("--quiet-per-s", type=float, default=3.0)
    parser.add_argument("--limit-per-s", type=float, default=6.0, help="the loud tenant's limit")
    parser.add_argument("--slots", type=int, default=8, help="gateway.max_running_requests")
    parser.add_argument("--words", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--head-start-s", type=float, default=1.5, help="for the loud tenant's process to start")
    parser.add_argument("--unfair", action="store_true", help="one key and no limit, for comparison")
    parser.add_argument("--name", default="", help="end of the result file's name; none: nothing is written")
    options = parser.parse_args(argv)
    result = measure(options)
    p95 = result["ratios"]["flood / at its limit"]["p95_ms"]
    print(json.dumps(result["ratios"], indent=1))
    print(f"p95 of the flood is {p95['median']:.2f} times that at the limit; below {SLACK} is wanted")
    if options.name:
        path = RESULTS / f"{time.strftime('%Y-%m-%d')}-{options.name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")
        print(f"written: benchmarks/results/operations/{path.name}")
