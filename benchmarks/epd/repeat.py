"""Is a second question about a picture as cheap as a text of the same length? One request at a time, in turns.

With `--against engine.embedding_cache_bytes=0` no worker keeps what it has encoded: keys and values alone must serve.
"""

import argparse
from typing import Any

from benchmarks.epd.fleets import counters, fleets, ways_of
from benchmarks.epd.intervals import interval, ratio_of_medians, verdict
from benchmarks.epd.requests import TEXT, body, pictures
from benchmarks.sending import send
from chiasm.bench.grid.servers import Server
from chiasm.bench.metrics.ttft import wire_ttft_s

REQUESTS = 150
NUM_FIRST = 4
"""So many pairs are for everything that happens once."""
MOST_DELAY = 1.3
COUNTERS = ("encoded_items_total", "decoded_items_total")


async def repeat(args: argparse.Namespace) -> dict[str, Any]:
    """A ratio for each topology, and what its workers encoded and decoded for all second questions together."""
    count = NUM_FIRST + (args.requests or REQUESTS)
    found: dict[str, Any] = {"ratios": {}, "encodes": {}, "decodes": {}, "verdicts": [], "asked": count - NUM_FIRST}
    async with fleets(ways_of(args)) as running:
        for name, server in running.items():
            shown = [pictures(f"repeat {number}", 1, args.tokens) for number in range(count)]
            await _one_by_one(server, [body(one, TEXT.format(f"a{n}"), 1) for n, one in enumerate(shown)])
            before = await counters(server)
            again = [body(one, TEXT.format(f"b{number}"), 1) for number, one in enumerate(shown)]
            texts = [body([], TEXT.format(f"c{number}"), 1) for number in range(count)]
            waits = await _one_by_one(server, [one for pair in zip(again, texts, strict=True) for one in pair])
            after = await counters(server)
            pairs = list(zip(waits[::2], waits[1::2], strict=True))[NUM_FIRST:]
            found["ratios"][name] = interval(pairs, ratio_of_medians)
            found["encodes"][name], found["decodes"][name] = (after[one] - before[one] for one in COUNTERS)
            promise = f"{name}: first token of another question"
            found["verdicts"].append(verdict(promise, found["ratios"][name], MOST_DELAY))
    return found


async def _one_by_one(server: Server, bodies: list[bytes]) -> list[float]:
    """From the send to the first token; every request must be answered."""
    waits = [wire_ttft_s(record) for record in (await send(server.target, bodies, concurrency=1)).records]
    answered = [wait for wait in waits if wait is not None]
    if len(answered) < len(bodies):
        raise RuntimeError(f"{len(bodies) - len(answered)} of {len(bodies)} requests were not answered")
    return answered
