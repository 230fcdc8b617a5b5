"""Open-loop load: requests leave when their time has come, whether or not earlier ones have been answered.

Latencies count from the scheduled time, so that a late client or a full server cannot hide its delay.
"""

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import aiohttp

from benchmarks.http_client import PATH


@dataclass(frozen=True)
class Answer:
    """Times of one request in seconds after its scheduled start; `error` is a code, '' when it finished."""

    index: int
    sent_s: float
    first_token_s: float
    end_s: float
    error: str = ""

    def row(self) -> dict[str, float | int | str]:
        """The figures for a result file."""
        return {name: round(value, 6) if isinstance(value, float) else value for name, value in asdict(self).items()}


def poisson_schedule(count: int, rate_per_s: float, seed: str) -> list[float]:
    """Start times from 0, with exponential gaps."""
    rng, at_s, times = random.Random(seed), 0.0, []
    for _ in range(count):
        times.append(at_s)
        at_s += rng.expovariate(rate_per_s)
    return times


async def run_schedule(
    address: str, bodies: Sequence[bytes], schedule: Sequence[float], timeout_s: float
) -> list[Answer]:
    """Send each body at its time; every request is answered or counted as an error."""
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        start_s = time.perf_counter()

        async def one(index: int) -> Answer:
            due_s = start_s + schedule[index]
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            sent_s = time.perf_counter()
            first_s, error = await _stream(session, address, bodies[index])
            end_s = time.perf_counter()
            return Answer(index, sent_s - due_s, (first_s or end_s) - due_s, end_s - due_s, error)

        return await asyncio.gather(*map(one, range(len(bodies))))


async def capacity_per_s(address: str, bodies: Sequence[bytes], concurrency: int) -> float:
    """Requests per second in a closed loop over all bodies."""
    slots = asyncio.Semaphore(concurrency)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one(body: bytes) -> None:
            async with slots:
                _, error = await _stream(session, address, body)
                if error:
                    raise RuntimeError(f"a request failed while capacity was measured: {error}")

        started_s = time.perf_counter()
        await asyncio.gather(*map(one, bodies))
        return len(bodies) / (time.perf_counter() - started_s)


async def _stream(session: aiohttp.ClientSession, address: str, body: bytes) -> tuple[float | None, str]:
    """When the first content came, and the error's code."""
    first_s: float | None = None
    try:
        async with session.post(address + PATH, data=body, headers={"Content-Type": "application/json"}) as response:
            if response.status != 200:
                return None, str(json.loads(await response.read())["error"]["code"])
            async for line in response.content:
                if first_s is None and line.startswith(b"data: {"):
                    choices = json.loads(line[6:]).get("choices")
                    if choices and choices[0].get("delta", {}).get("content"):
                        first_s = time.perf_counter()
                elif line.startswith(b'data: {"error"'):
                    return first_s, str(json.loads(line[6:])["error"]["code"])
    except (aiohttp.ClientError, TimeoutError) as failure:
        return first_s, type(failure).__name__
    return first_s, ""
