"""Downloading a request's pictures at once against one after the other, from a server that takes its time to answer.

The server is a process of its own on this machine; every answer waits for a fixed time, as one that is far away would.
Both ways collect the same pictures: fetched, headers read, hashed. A new ingest each time, so that connections are
made anew. `cpu_share` is the client's CPU time over its wall time, less the time that its event loop was ready and
another process had the core: near 1 there is nothing left to wait for. `server_cpu_s` is what the server took.
"""

import argparse
import asyncio
import json
import multiprocessing
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.media import encoded, photo
from benchmarks.ratios import median_ratio
from chiasm.media import MediaIngest, MediaReference, MediaSettings

HOST = "127.0.0.1"
DEADLINE_S = 60.0
TARGET = 10.0


class Server(asyncio.Protocol):
    """Answers `GET /<number>` after the latency, with as little work as Python allows: it shares the client's cores."""

    def __init__(self, answers: list[bytes], latency_s: float) -> None:
        self._answers = answers
        self._latency_s = latency_s
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._head += data
        if self._head.endswith(b"\r\n\r\n"):
            number = int(self._head.split(b" ", 2)[1][1:])
            self._head = b""
            asyncio.get_running_loop().call_later(self._latency_s, self._transport.write, self._answers[number])


def serve(pictures: list[bytes], latency_s: float, ready: Any) -> None:
    """A server of these pictures, until the process is ended."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n"
    answers = [head % len(picture) + picture for picture in pictures]

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(
            lambda: Server(answers, latency_s), HOST, 0, backlog=1024
        )
        ready.put(server.sockets[0].getsockname()[1])
        await asyncio.Event().wait()

    asyncio.run(run())


def scheduled(thread: str) -> tuple[float, float]:
    """Seconds that a thread ran, and that it was ready and waited for a core, by Linux's count."""
    ran, waited, _ = Path("/proc", thread, "schedstat").read_text().split()
    return int(ran) / 1e9, int(waited) / 1e9


async def at_once(ingest: MediaIngest, references: list[MediaReference]) -> None:
    await ingest.collect(references, DEADLINE_S)


async def one_by_one(ingest: MediaIngest, references: list[MediaReference]) -> None:
    for reference in references:
        await ingest.collect([reference], DEADLINE_S)


async def timed(way: Callable[[MediaIngest, list[MediaReference]], Awaitable[None]], port: int, count: int) -> Any:
    """Wall and CPU seconds of all pictures."""
    settings = MediaSettings(
        allowed_domains=(HOST,),
        allowed_private_hosts=(HOST,),
        allow_http=True,
        allowed_ports=(port,),
        max_items=count,
        max_fetches=count,
        max_fetches_per_host=count,
        max_request_bytes=2**30,
        max_request_pixels=2**40,
    )
    references = [MediaReference("image", f"http://{HOST}:{port}/{number}", f"/{number}") for number in range(count)]
    ingest = MediaIngest(settings, None)
    try:
        wall_s, cpu_s, (_, ready_s) = time.perf_counter(), time.process_time(), scheduled("thread-self")
        await way(ingest, references)
        return {
            "wall_s": time.perf_counter() - wall_s,
            "cpu_s": time.process_time() - cpu_s,
            "ready_s": scheduled("thread-self")[1] - ready_s,
        }
    finally:
        await ingest.aclose()


def measure(port: int, server: str, count: int, rounds: int) -> dict[str, Any]:
    """Both ways in turns. `server` is its process."""
    ways = {"one by one": one_by_one, "at once": at_once}
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            before_s, _ = scheduled(server)
            row = asyncio.run(timed(way, port, count))
            rows[name].append(row | {"server_cpu_s": scheduled(server)[0] - before_s})
    walls = {name: [row["wall_s"] for row in found] for name, found in rows.items()}
    return {
        "times_faster": median_ratio(walls["one by one"], walls["at once"]),
        "target": TARGET,
        "cpu_share": {
            name: statistics.median(row["cpu_s"] / (row["wall_s"] - row["ready_s"]) for row in found)
            for name, found in rows.items()
        },
        "server_cpu_s": {name: statistics.median(row["server_cpu_s"] for row in found) for name, found in rows.items()},
        "pictures_per_s": {name: count / statistics.median(found) for name, found in walls.items()},
        "rows": rows,
    }


def main(argv: list[str]) -> None:
    """Measure, print, and write a file where one is named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks downloads", description=__doc__)
    parser.add_argument("--pictures", type=int, default=100)
    parser.add_argument("--latency-ms", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, help="JSON file; default: printed only")
    options = parser.parse_args(argv)
    described = machine.describe()
    pictures = [encoded(photo(320 + number, 240), "JPEG", quality=90) for number in range(options.pictures)]
    context = multiprocessing.get_context("spawn")
    ready = context.Queue()
    server = context.Process(target=serve, args=(pictures, options.latency_ms / 1e3, ready), daemon=True)
    server.start()
    try:
        found = measure(ready.get(timeout=DEADLINE_S), str(server.pid), options.pictures, options.rounds)
    finally:
        server.terminate()
        server.join()
    result = {
        "benchmark": "downloads",
        "machine": described,
        "pictures": options.pictures,
        "latency_ms": options.latency_ms,
        "mean_bytes": statistics.fmean(map(len, pictures)),
    } | found
    print(json.dumps({name: value for name, value in result.items() if name != "rows"}, indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
