"""Can a tenant tell from times what another has asked? Probes after another asked, against probes after nobody did.

A round has, in random order, three probes by a tenant, each with a picture and question of its own: nobody asked it
before (fresh), another tenant did (other), the tenant itself did (own). Right before each somebody has asked something,
before a fresh one about another picture, since a server that has just worked answers a little faster. `auc` is the
chance that a probe is faster than a fresh one: 0.5 tells nothing, and that is wanted of `other`; `own` shows that the
caches are there and how much would be seen. The interval is a bootstrap over rounds.
"""

import argparse
import asyncio
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import aiohttp
import pybase64

from benchmarks import machine
from benchmarks.gateway_tax import big_picture
from benchmarks.tenants import TIMEOUT, Server, first_token_s, served, text_body

RESULTS = Path(__file__).parent / "results/operations"
PROBES = ("fresh", "other", "own")
_RESAMPLES = 2000


def question(seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """A picture and a text that nobody else has."""
    body = text_body(seed, options.words, 1)
    url = f"data:image/png;base64,{pybase64.b64encode(big_picture(seed)).decode()}"
    body["messages"][0]["content"] = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": body["messages"][0]["content"]},
    ]
    return body


async def measure(server: Server, options: argparse.Namespace) -> list[dict[str, float]]:
    """Seconds of each probe, by round."""
    order, rounds = random.Random(0), []
    async with aiohttp.ClientSession(timeout=TIMEOUT) as session:
        for number in range(-2, options.rounds):
            found = {}
            for place, probe in enumerate(order.sample(PROBES, len(PROBES))):
                body, apart = (question(1000 * (number + 3) + place + more, options) for more in (0, 500))
                asker = "spy" if probe == "own" else "victim"
                await first_token_s(session, server, asker, apart if probe == "fresh" else body)
                found[probe] = await first_token_s(session, server, "spy", body)
            if number >= 0:
                rounds.append(found)
    return rounds


def auc(probes_s: list[float], fresh_s: list[float]) -> float:
    """The chance that a probe is faster than a fresh one."""
    pairs = [(a, b) for a in probes_s for b in fresh_s]
    return sum(1.0 if a < b else 0.5 if a == b else 0.0 for a, b in pairs) / len(pairs)


def told(rounds: list[dict[str, float]], probe: str) -> dict[str, float]:
    """What a probe tells, with a 95 % interval."""
    draw = random.Random(0)

    def of(chosen: list[dict[str, float]]) -> float:
        return auc([one[probe] for one in chosen], [one["fresh"] for one in chosen])

    values = sorted(of(draw.choices(rounds, k=len(rounds))) for _ in range(_RESAMPLES))
    return {
        "auc": of(rounds),
        "low": values[int(0.025 * _RESAMPLES)],
        "high": values[int(0.975 * _RESAMPLES) - 1],
        "median_ms": 1000 * statistics.median(one[probe] for one in rounds),
    }


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks cache_timing", description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--words", type=int, default=200)
    parser.add_argument("--scope", choices=("tenant", "shared"), default="tenant", help="gateway.cache_scope")
    parser.add_argument("--topology", default="local")
    parser.add_argument("--name", default="", help="end of the result file's name; none: nothing is written")
    options = parser.parse_args(argv)
    settings = [f"gateway.cache_scope={options.scope}", f"routing.topology={options.topology}"]
    with served(("spy", "victim"), "", settings) as server:
        rounds = asyncio.run(measure(server, options))
    result = {
        "machine": machine.describe(),
        "options": vars(options),
        "told": {probe: told(rounds, probe) for probe in PROBES},
        "rounds": rounds,
    }
    print(json.dumps(result["told"], indent=1))
    if options.name:
        path = RESULTS / f"{time.strftime('%Y-%m-%d')}-{options.name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")
        print(f"written: benchmarks/results/operations/{path.name}")
