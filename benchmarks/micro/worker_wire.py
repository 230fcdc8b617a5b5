"""Time what the wire costs between a gateway and a worker that answers at once: per token, per call, per picture.

Run: python benchmarks/micro/worker_wire.py --tokens 2000 --rounds 5
The worker is called directly ("local") or in another process: over a Unix socket, over TCP, over a Unix socket by
aiohttp's client instead of ours. Prints the least of all rounds: on a busy machine only that means something.
"""

import argparse
import asyncio
import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp
import psutil
import uvloop

from benchmarks.instant_gateway import InstantWorker
from chiasm.launch.server import address_of, bind, bind_unix, serve_app
from chiasm.protocol.generation import (
    ChatPrompt,
    GenerateEvent,
    GenerateRequest,
    ItemPart,
    Message,
    RequestFinished,
    SamplingParams,
    TextPart,
    TokenEvent,
    Usage,
)
from chiasm.protocol.media import InlineSource, MediaItem, SpoolSource
from chiasm.protocol.wire import CHAT_PATH, AnswerEncoder, StreamDecoder, decode_request, decode_whole, encode_request
from chiasm.routing.remote import RemoteWorker
from chiasm.workers.server import WorkerServerLimits, create_worker_app

CONCURRENCY = (1, 16)
NUM_CALLS = 32
Way = tuple[Any, psutil.Process | None]
Costs = tuple[float, float, float]


async def serve(address: str) -> None:
    limits = WorkerServerLimits()
    app = create_worker_app(InstantWorker(), limits)
    listener = bind("127.0.0.1", 0) if address == "tcp" else bind_unix(address)
    await serve_app(app, app, listener, limits, asyncio.Event(), lambda: print(address_of(listener), flush=True))


def start(address: str) -> tuple[subprocess.Popen[bytes], str]:
    command = (sys.executable, "-m", "benchmarks.micro.worker_wire", "--serve", address)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    assert process.stdout is not None
    return process, process.stdout.readline().decode().strip()


@asynccontextmanager
async def remote(address: str):
    process, where = start(address)
    try:
        worker = await RemoteWorker.connect(where)
        yield worker, psutil.Process(process.pid)
        await worker.aclose()
    finally:
        process.terminate()
        process.wait()


def request(num_tokens: int, *, stream: bool = True, source: InlineSource | SpoolSource | None = None):
    items = ()
    if source is not None:
        items = (MediaItem(identity="ab" * 32, format="jpeg", width=1024, height=768, source=source),)
    parts = (*(ItemPart(index) for index in range(len(items))), TextPart("What colour is this?"))
    return GenerateRequest(
        request_id="r",
        prompt=ChatPrompt((Message("user", parts),)),
        items=items,
        sampling=SamplingParams(max_tokens=num_tokens),
        stream=stream,
    )


async def drain(worker, asked: GenerateRequest) -> None:
    async with aclosing(worker.generate(asked)) as events:
        async for _ in events:
            pass


def cpu_s(process: psutil.Process | None) -> float:
    return sum(process.cpu_times()[:2]) if process else 0.0


class AiohttpWorker:
    """What the contract's own client is compared with: the same codec over aiohttp's."""

    def __init__(self, address: str) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(address.removeprefix("unix:"), keepalive_timeout=3.0),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept-Encoding", "Accept"),
        )

    async def generate(self, asked: GenerateRequest) -> AsyncGenerator[GenerateEvent, None]:
        path, pieces = encode_request(asked, "instant")
        body = b"".join(pieces)
        timeout = aiohttp.ClientTimeout(total=asked.timeout_s)
        async with self._session.post("http://worker" + path, data=io.BytesIO(body), timeout=timeout) as response:
            if not asked.stream:
                for event in decode_whole(await response.read(), asked.sampling.n):
                    yield event
                return
            decoder = StreamDecoder(asked.sampling.n)
            while data := await response.content.readany():
                for event in decoder.feed(data):
                    yield event

    async def aclose(self) -> None:
        await self._session.close()


async def compare(ways: dict[str, Way], asked: GenerateRequest, concurrency: int, rounds: int) -> dict[str, Costs]:
    """Wall, own CPU and worker's CPU seconds of each way's cheapest round; rounds of different ways alternate."""
    best = dict.fromkeys(ways, (float("inf"),) * 3)
    for _ in range(rounds):
        for name, (worker, process) in ways.items():
            own_s, its_s, start_s = time.process_time(), cpu_s(process), time.perf_counter()
            await asyncio.gather(*(drain(worker, asked) for _ in range(concurrency)))
            costs = time.perf_counter() - start_s, time.process_time() - own_s, cpu_s(process) - its_s
            best[name] = cast("Costs", tuple(map(min, best[name], costs)))
    return best


def codec(num_tokens: int) -> None:
    encoder, decoder = AnswerEncoder(CHAT_PATH, "r", "instant"), StreamDecoder(1)
    event = TokenEvent(0, "red ", (7,))
    start_s = time.perf_counter()
    chunks = [encoder.chunk(event) for _ in range(num_tokens)]
    middle_s = time.perf_counter()
    for chunk in chunks:
        decoder.feed(chunk)
    end_s = time.perf_counter()
    decoder.feed(encoder.chunk(RequestFinished(Usage(num_prompt_tokens=1, num_output_tokens=1))))
    assert decoder.is_done
    per_token = 1e6 / num_tokens
    print(f"codec   encode {(middle_s - start_s) * per_token:6.2f} us/token, ", end="")
    print(f"decode {(end_s - middle_s) * per_token:6.2f} us/token, {len(chunks[0])} bytes")
    for name, source in SOURCES.items():
        asked, start_s = request(1, source=source), time.perf_counter()
        for _ in range(20):
            path, pieces = encode_request(asked, "instant")
        body = b"".join(pieces)
        middle_s = time.perf_counter()
        for _ in range(20):
            decode_request(path, body)
        end_s = time.perf_counter()
        print(f"codec   {name:22} encode {(middle_s - start_s) * 5e4:7.1f} us, ", end="")
        print(f"decode {(end_s - middle_s) * 5e4:7.1f} us, {len(body)} bytes")


SOURCES: dict[str, InlineSource | SpoolSource | None] = {
    "text": None,
    "1 MB, spooled": SpoolSource("a1", 2**20),
    "1 MB, inline": InlineSource(os.urandom(2**20)),
}


def show(what: str, costs: dict[str, Costs], scale: float) -> None:
    for name, (wall_s, own_s, its_s) in costs.items():
        print(f"{what:22} {name:8} {wall_s * scale:8.1f} us wall, ", end="")
        print(f"{own_s * scale:8.1f} us CPU here, {its_s * scale:8.1f} us CPU there")


async def main(num_tokens: int, rounds: int) -> None:
    codec(num_tokens)
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        ways: dict[str, Way] = {"local": (InstantWorker(), None)}
        ways["unix"] = unix = await stack.enter_async_context(remote(f"{folder}/w"))
        ways["tcp"] = await stack.enter_async_context(remote("tcp"))
        ways["aiohttp"] = (AiohttpWorker(f"{folder}/w"), unix[1])
        stack.push_async_callback(ways["aiohttp"][0].aclose)
        for concurrency in CONCURRENCY:
            costs = await compare(ways, request(num_tokens), concurrency, rounds)
            show(f"token, {concurrency} streams", costs, 1e6 / num_tokens / concurrency)
        for name, source in SOURCES.items():
            asked = request(1, stream=False, source=source)
            show(f"call, {name}", await compare(ways, asked, NUM_CALLS, rounds), 1e6 / NUM_CALLS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    uvloop.run(serve(options.serve) if options.serve else main(options.tokens, options.rounds))
