"""Does text wait for pictures? Texts alone, and the same texts at the same times beside as many pictures. No caches."""

import argparse
from typing import Any

import numpy as np

from benchmarks.epd.fleets import fleets, ways_of
from benchmarks.epd.intervals import interval, ratio_of_p95, verdict
from benchmarks.epd.requests import TEXT, body, pictures
from benchmarks.sending import capacity_per_s, poisson, send, shuffled
from chiasm.bench.grid.servers import Server
from chiasm.bench.metrics.ttft import ttft_s

REQUESTS, SEEDS = 100, 3
MOST_DELAY = 1.15
BLOCK = 8
NO_CACHES = ("engine.prefix_cache_bytes=0", "engine.embedding_cache_bytes=0")
OUTPUT = 16


async def mixed(args: argparse.Namespace) -> dict[str, Any]:
    """Pairs over all seeds, for each topology."""
    count = args.requests or REQUESTS
    async with fleets(ways_of(args), *NO_CACHES) as running:
        both = [*_texts("capacity", count // 2), *_shown("capacity", count // 2, args.tokens)]
        for server in running.values():  # so that all have met what is coming
            await capacity_per_s(server.target, both, 4)
        rate = args.load * await capacity_per_s(running[args.topologies[0]].target, both, 4) / 2
        pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in running}
        shown: dict[str, list[float]] = {name: [] for name in running}
        for seed in range(SEEDS):
            for name in shuffled(list(running), f"{seed}"):
                found, others = await _pairs(running[name], seed, count, rate, args.tokens)
                pairs[name] += found
                shown[name] += others
    ratios = {name: interval(found, ratio_of_p95, BLOCK) for name, found in pairs.items()}
    promise = "95th percentile of a text's first token"
    return {
        "rate_per_s": rate,
        "asked": SEEDS * count,
        "ratios": ratios,
        "text_p95_s": {name: np.percentile(found, 95, axis=0).tolist() for name, found in pairs.items()},
        "picture_ttft_s": {name: np.percentile(found, (50, 95)).tolist() for name, found in shown.items()},
        "verdicts": [verdict(f"{name}: {promise}", ratio, MOST_DELAY) for name, ratio in ratios.items()],
    }


async def _pairs(
    server: Server, seed: int, count: int, rate: float, tokens: int
) -> tuple[list[tuple[float, float]], list[float]]:
    """First tokens of texts beside pictures, and alone, of those that were answered both times; and of the pictures."""
    texts, shown = _texts(f"{seed}", count), _shown(f"{seed}", count, tokens)
    times, others = poisson(count, rate, f"texts {seed}"), poisson(count, rate, f"pictures {seed}")
    merged = sorted(
        [(at_s, one, number) for number, (at_s, one) in enumerate(zip(times, texts, strict=True))]
        + [(at_s, one, -1) for at_s, one in zip(others, shown, strict=True)],
        key=lambda one: one[0],
    )
    alone = (await send(server.target, texts, times)).records
    beside = (await send(server.target, [one for _, one, _ in merged], [at_s for at_s, _, _ in merged])).records
    found = {number: ttft_s(record) for record, (_, _, number) in zip(beside, merged, strict=True)}
    pairs = [(found[record.index], ttft_s(record)) for record in alone]
    ends = [ttft_s(record) for record, (_, _, number) in zip(beside, merged, strict=True) if number < 0]
    return (
        [(ours, theirs) for ours, theirs in pairs if ours is not None and theirs is not None],
        [end_s for end_s in ends if end_s is not None],
    )


def _texts(seed: str, count: int) -> list[bytes]:
    return [body([], TEXT.format(f"{seed} {number}"), OUTPUT) for number in range(count)]


def _shown(seed: str, count: int, tokens: int) -> list[bytes]:
    return [
        body(pictures(f"mixed {seed} {number}", 1, tokens), TEXT.format(f"{seed} {number}"), OUTPUT)
        for number in range(count)
    ]
