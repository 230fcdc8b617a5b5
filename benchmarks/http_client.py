"""Two small HTTP clients: one that only counts answers, as fast as it can, and one that reads event streams."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from benchmarks.streams import time_streams

PATH = "/v1/chat/completions"


def encoded_request(address: str, body: bytes) -> bytes:
    """A whole HTTP/1.1 request, made before the clock runs."""
    head = f"POST {PATH} HTTP/1.1\r\nHost: {urlsplit(address).netloc}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def count_answers(address: str, body: bytes, connections: int, seconds: float) -> dict[str, float]:
    """Requests per second over keep-alive connections, one at a time on each; every answer must be 200."""
    request, parts = encoded_request(address, body), urlsplit(address)
    waits: list[float] = []
    stop_s = time.perf_counter() + seconds

    async def client() -> None:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        while (started := time.perf_counter()) < stop_s:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"answered {head[:40]!r}")
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            waits.append(time.perf_counter() - started)
        writer.close()

    started, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(client() for _ in range(connections)))
    wall_s = time.perf_counter() - started
    waits.sort()
    return {
        "requests_per_s": len(waits) / wall_s,
        "median_s": waits[len(waits) // 2],
        "p99_s": waits[int(len(waits) * 0.99)],
        "client_cpu_share": (time.process_time() - cpu) / wall_s,
    }


async def time_http_streams(address: str, bodies: Sequence[bytes], concurrency: int) -> dict[str, Any]:
    """Stream chat completions and time their events."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def stream(number: int) -> AsyncIterator[int]:
            headers = {"Content-Type": "application/json"}
            async with session.post(address + PATH, data=bodies[number], headers=headers) as response:
                response.raise_for_status()
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        choices = json.loads(line[6:])["choices"]
                        if choices and choices[0].get("delta", {}).get("content"):
                            yield 1

        return await time_streams(stream, len(bodies), concurrency)
