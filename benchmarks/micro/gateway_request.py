"""CPU time of the gateway for one text request, without sockets: for changes that the noise of a network would hide.

    python -m benchmarks.micro.gateway_request [--stream] [--profile]

Eight connections are fed requests as bytes and their answers thrown away; the worker answers at once. Compare two
versions by running both in turns: CPU time depends little on what else the machine does.
"""

import argparse
import asyncio
import cProfile
import json
import pstats
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import uvloop

from benchmarks.instant_gateway import InstantWorker
from chiasm.asgi.http.connection import Connection
from chiasm.gateway import create_app
from chiasm.launch.memory import settle
from chiasm.media.ingest import MediaIngest
from chiasm.settings import resolve

CONNECTIONS, REQUESTS, ROUNDS, WARM_UP = 8, 1000, 7, 300
LAST_CHUNK = b"0\r\n\r\n"


class Client(asyncio.Transport):
    """A transport without a network: asks again when an answer is complete, for as long as it is told to."""

    def __init__(self, request: bytes, is_stream: bool, wants_more: Callable[[], bool]) -> None:  # noqa: FBT001
        super().__init__()
        self._request = request
        self._is_stream = is_stream
        self._wants_more = wants_more
        self.connection: Any = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        return

    def resume_reading(self) -> None:
        return

    def close(self) -> None:
        return

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_stream and bytes(data[-len(LAST_CHUNK) :]) != LAST_CHUNK:
            return
        if self._wants_more():
            asyncio.get_running_loop().call_soon(self.ask)

    def ask(self) -> None:
        self.connection.get_buffer(-1)[: len(self._request)] = self._request
        self.connection.buffer_updated(len(self._request))


class Load:
    """Requests over all connections until enough were answered."""

    def __init__(self, *, is_stream: bool) -> None:
        settings = resolve(environment={}).settings
        app = create_app(InstantWorker(), MediaIngest(settings.media, None), settings.gateway)
        config = SimpleNamespace(loaded_app=app, timeout_keep_alive=60)
        state = SimpleNamespace(connections=set(), tasks=set(), total_requests=0, default_headers=[])
        self._num_left = 0
        self._over = asyncio.Event()
        request = _request(is_stream=is_stream)
        self._clients = [Client(request, is_stream, self._wants_more) for _ in range(CONNECTIONS)]
        for client in self._clients:
            client.connection = Connection(config, state, None)
            client.connection.connection_made(client)

    async def send(self, count: int) -> None:
        """Have so many requests answered."""
        self._num_left = count
        self._over.clear()
        for client in self._clients:
            client.ask()
        await self._over.wait()
        await asyncio.sleep(0.01)  # the others' last answers

    def _wants_more(self) -> bool:
        self._num_left -= 1
        if self._num_left <= 0:
            self._over.set()
        return self._num_left > 0


def _request(*, is_stream: bool) -> bytes:
    message = {"role": "user", "content": "What color is it?"}
    body = json.dumps({"model": "instant", "stream": is_stream, "max_tokens": 8, "messages": [message]}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: "
    return f"{head}{len(body)}\r\n\r\n".encode() + body


async def main(args: argparse.Namespace) -> None:
    """Print microseconds of each round, the least last, or where the time goes."""
    settle()
    load = Load(is_stream=args.stream)
    await load.send(WARM_UP)
    if args.profile:
        with cProfile.Profile() as profile:
            await load.send(REQUESTS)
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)
        return
    rounds = []
    for _ in range(ROUNDS):
        started_s = time.process_time()
        await load.send(REQUESTS)
        rounds.append((time.process_time() - started_s) / REQUESTS * 1e6)
    print(" ".join(f"{one:.1f}" for one in rounds), f"us; least {min(rounds):.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--profile", action="store_true")
    uvloop.run(main(parser.parse_args()))
