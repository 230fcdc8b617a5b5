"""Does text wait for pictures? Texts alone, and the same texts at the same times beside as many pictures. No caches.

Receipts say in which stage the slowest texts wait, and the kernel which threads were ready to run and had no core.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.epd.fleets import fleets, ways_of
from benchmarks.epd.intervals import Pair, interval, ratio_of_p95, verdict
from benchmarks.epd.requests import TEXT, body, pictures
from benchmarks.epd.waits import Waits, added, per_text_ms, stages_of, waited, waits
from benchmarks.sending import capacity_per_s, poisson, send, shuffled
from chiasm.bench.grid.servers import Server
from chiasm.bench.metrics.ttft import ttft_s
from chiasm.bench.record import Record

REQUESTS, SEEDS = 100, 3
MOST_DELAY = 1.15
BLOCK = 8
NO_CACHES = ("engine.prefix_cache_bytes=0", "engine.embedding_cache_bytes=0")
OUTPUT = 16


@dataclass
class _Found:
    """Texts alone, the same beside pictures, those pictures, and what threads waited for a core meanwhile."""

    alone: list[Record] = field(default_factory=list)
    beside: list[Record] = field(default_factory=list)
    shown: list[Record] = field(default_factory=list)
    waits_alone: Waits = field(default_factory=dict)
    waits_beside: Waits = field(default_factory=dict)

    @property
    def pairs(self) -> list[Pair]:
        """First tokens beside pictures, and alone, of texts that were answered both times."""
        both = [(ttft_s(ours), ttft_s(theirs)) for ours, theirs in zip(self.beside, self.alone, strict=True)]
        return [(ours, theirs) for ours, theirs in both if ours is not None and theirs is not None]


async def mixed(args: argparse.Namespace) -> dict[str, Any]:
    """Pairs over all seeds, for each topology."""
    count = args.requests or REQUESTS
    async with fleets(ways_of(args), *NO_CACHES) as running:
        both = [*_texts("capacity", count // 2), *_shown("capacity", count // 2, args.tokens)]
        for server in running.values():  # so that all have met what is coming
            await capacity_per_s(server.target, both, 4)
        rate = args.load * await capacity_per_s(running[args.topologies[0]].target, both, 4) / 2
        found = {name: _Found() for name in running}
        for seed in range(SEEDS):
            for name in shuffled(list(running), f"{seed}"):
                await _ask(running[name], found[name], seed, count, rate, args.tokens)
    ratios = {name: interval(one.pairs, ratio_of_p95, BLOCK) for name, one in found.items()}
    promise = "95th percentile of a text's first token"
    return {
        "rate_per_s": rate,
        "asked": SEEDS * count,
        "ratios": ratios,
        "text_p95_s": {name: np.percentile(one.pairs, 95, axis=0).tolist() for name, one in found.items()},
        "picture_ttft_s": {name: _percentiles(one.shown) for name, one in found.items()},
        "stages_ms": {
            name: {"alone": stages_of(one.alone), "beside": stages_of(one.beside)} for name, one in found.items()
        },
        "threads_ms": {
            name: {
                "alone": per_text_ms(one.waits_alone, SEEDS * count),
                "beside": per_text_ms(one.waits_beside, SEEDS * count),
            }
            for name, one in found.items()
        },
        "verdicts": [verdict(f"{name}: {promise}", ratio, MOST_DELAY) for name, ratio in ratios.items()],
    }


async def _ask(server: Server, found: _Found, seed: int, count: int, rate: float, tokens: int) -> None:
    """Texts alone, then at the same times beside pictures."""
    texts, shown = _texts(f"{seed}", count), _shown(f"{seed}", count, tokens)
    times, others = poisson(count, rate, f"texts {seed}"), poisson(count, rate, f"pictures {seed}")
    merged = sorted(
        [(at_s, one, number) for number, (at_s, one) in enumerate(zip(times, texts, strict=True))]
        + [(at_s, one, -1) for at_s, one in zip(others, shown, strict=True)],
        key=lambda one: one[0],
    )
    before = waits(server)
    found.alone += (await send(server.target, texts, times)).records
    between = waits(server)
    records = (await send(server.target, [one for _, one, _ in merged], [at_s for at_s, _, _ in merged])).records
    found.waits_alone = added(found.waits_alone, waited(before, between))
    found.waits_beside = added(found.waits_beside, waited(between, waits(server)))
    are_texts = [number >= 0 for _, _, number in merged]
    found.beside += [record for record, is_text in zip(records, are_texts, strict=True) if is_text]
    found.shown += [record for record, is_text in zip(records, are_texts, strict=True) if not is_text]


def _percentiles(records: Sequence[Record]) -> list[float]:
    """Median and 95th percentile of first tokens."""
    return np.percentile([s for one in records if (s := ttft_s(one)) is not None], (50, 95)).tolist()


def _texts(seed: str, count: int) -> list[bytes]:
    return [body([], TEXT.format(f"{seed} {number}"), OUTPUT, chiasm={"receipt": True}) for number in range(count)]


def _shown(seed: str, count: int, tokens: int) -> list[bytes]:
    return [
        body(pictures(f"mixed {seed} {number}", 1, tokens), TEXT.format(f"{seed} {number}"), OUTPUT)
        for number in range(count)
    ]
