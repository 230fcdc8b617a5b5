"""Timing of streamed answers, whoever gives them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

Stream = Callable[[int], AsyncIterator[int]]
"""Request number -> one item per event, saying how many tokens it carried."""


async def time_streams(stream: Stream, count: int, concurrency: int) -> dict[str, Any]:
    """Run `count` streams, `concurrency` at a time."""
    first_s: list[float] = []
    per_token_s: list[float] = []
    totals = {"events": 0, "tokens": 0}
    slots = asyncio.Semaphore(concurrency)

    async def one(number: int) -> None:
        async with slots:
            started = time.perf_counter()
            first, num_tokens = 0.0, 0
            async for tokens in stream(number):
                first = first or time.perf_counter() - started
                num_tokens += tokens
                totals["events"] += 1
            first_s.append(first)
            totals["tokens"] += num_tokens
            per_token_s.append((time.perf_counter() - started - first) / max(num_tokens - 1, 1))

    started = time.perf_counter()
    await asyncio.gather(*map(one, range(count)))
    wall_s = time.perf_counter() - started
    return {
        "first_token_s": sorted(first_s)[count // 2],
        "per_token_s": sorted(per_token_s)[count // 2],
        "events_per_s": totals["events"] / wall_s,
        "tokens_per_s": totals["tokens"] / wall_s,
    }
