"""Which way answers first under load? First tokens and whole answers of each over those of the first way.

All get the same requests at the same times, which nobody has seen. Receipts tell where embeddings were handed over.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.epd.fleets import fleets, ways_of
from benchmarks.epd.intervals import Pair, interval, ratio_of_means
from benchmarks.epd.requests import TEXT, body, pictures
from benchmarks.sending import capacity_per_s, poisson, send, shuffled
from chiasm.bench.grid.servers import Server
from chiasm.bench.metrics.e2el import e2el_s
from chiasm.bench.metrics.ttft import ttft_s
from chiasm.bench.record import Record

REQUESTS, SEEDS = 60, 3
BLOCK = 8
NUM_OPEN = 4
MEASURES = {"ttft": ttft_s, "e2el": e2el_s}


async def answers(args: argparse.Namespace) -> dict[str, Any]:
    """Ratios over all seeds, and how long each gateway's event loop was ready to run and had no core."""
    count, images = args.requests or REQUESTS, args.images[0] if args.images else 0

    def asked(seed: str, count: int) -> list[bytes]:
        return [_asked(f"{seed} {number}", images, args) for number in range(count)]

    async with fleets(ways_of(args)) as running:
        first = next(iter(running))
        for server in running.values():  # so that all have met what is coming
            await capacity_per_s(server.target, asked("meeting", count // 2), NUM_OPEN)
        rate = args.load * await capacity_per_s(running[first].target, asked("capacity", count // 2), NUM_OPEN)
        found: dict[str, list[Record]] = {name: [] for name in running}
        waited_s = dict.fromkeys(running, 0.0)
        for seed in range(SEEDS):
            for name in shuffled(list(running), f"answers {seed}"):
                before_s = _waited_s(running[name])
                times = poisson(count, rate, f"answers {seed}")
                found[name] += (await send(running[name].target, asked(f"{seed}", count), times)).records
                waited_s[name] += _waited_s(running[name]) - before_s
    return {
        "rate_per_s": rate,
        "asked": SEEDS * count,
        "images": images,
        "output": args.output,
        "against": first,
        "ratios": {
            name: {
                what: interval(_pairs(records, found[first], what), ratio_of_means, BLOCK)
                for what in MEASURES
                if name != first
            }
            for name, records in found.items()
        },
        "ms": {name: _summary(records) for name, records in found.items()},
        "handed_over": {name: _share_handed_over(records) for name, records in found.items()},
        "waited_ms": {name: 1e3 * waited / (SEEDS * count) for name, waited in waited_s.items()},
    }


def _asked(seed: str, images: int, args: argparse.Namespace) -> bytes:
    shown = pictures(f"answers {seed}", images, args.tokens)
    return body(shown, TEXT.format(f"answers {seed}"), args.output, chiasm={"receipt": True})


def _pairs(ours: list[Record], theirs: list[Record], what: str) -> list[Pair]:
    """Of requests that both answered."""
    measure = MEASURES[what]
    both = [(measure(one), measure(other)) for one, other in zip(ours, theirs, strict=True)]
    return [(one, other) for one, other in both if one is not None and other is not None]


def _summary(records: list[Record]) -> dict[str, float]:
    found = {what: [s for one in records if (s := measure(one)) is not None] for what, measure in MEASURES.items()}
    return {
        "ttft_mean": 1e3 * float(np.mean(found["ttft"])),
        "ttft_p95": 1e3 * float(np.quantile(found["ttft"], 0.95)),
        "e2el_mean": 1e3 * float(np.mean(found["e2el"])),
    }


def _share_handed_over(records: list[Record]) -> float:
    """Of the answered requests, those that got an embedding of another worker."""
    receipts = [one.receipt for one in records if one.receipt is not None]
    return sum(one.stages_s.get("transfer", 0.0) > 0.0 for one in receipts) / max(1, len(receipts))


def _waited_s(server: Server) -> float:
    """How long the gateway's first thread, which has its event loop, waited for a core since it was started."""
    return int(Path(f"/proc/{server.pid}/schedstat").read_text().split()[1]) / 1e9
