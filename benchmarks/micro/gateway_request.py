"""CPU time of the gateway for one text request, without sockets: for changes that the noise of a network would hide.

    python -m benchmarks.micro.gateway_request [--stream | --refused] [--fleet] [--profile | --layers]

Eight connections are fed requests as bytes and their answers thrown away; the worker answers at once. Compare two
versions by running both in turns: CPU time depends little on what else the machine does. `--refused` sends them with
the key of a tenant that is beyond its limit, to a server that logs as `chiasm serve` does, to /dev/null. `--fleet` has
the worker in another process, behind the router and its HTTP client, whose sockets then count as well. `--layers`
samples the stack and says what each module takes of a request.
"""

import argparse
import asyncio
import cProfile
import json
import pstats
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import uvloop

from benchmarks.gateway_tax import free_port
from benchmarks.instant_gateway import InstantWorker, fleet_of_one
from benchmarks.micro.sampled import Sampled
from chiasm.asgi.http.connection import Connection
from chiasm.gateway import create_app
from chiasm.launch.memory import settle
from chiasm.media.ingest import MediaIngest
from chiasm.observability.logs import configure_logging
from chiasm.protocol.worker import Worker
from chiasm.settings import resolve
from chiasm.tenancy.edit import new_key

CONNECTIONS, REQUESTS, ROUNDS, WARM_UP = 8, 1000, 7, 300
LAST_CHUNK = b"0\r\n\r\n"
LIMITS = "[tenants.loud]\nmax_requests_per_minute = 0.001\n"


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

    def __init__(self, worker: Worker, *, is_stream: bool, key: str, overrides: list[str]) -> None:
        settings = resolve(environment={}, overrides=overrides).settings
        app = create_app(worker, MediaIngest(settings.media, None), settings.gateway)
        config = SimpleNamespace(loaded_app=app, timeout_keep_alive=60)
        state = SimpleNamespace(connections=set(), tasks=set(), total_requests=0, default_headers=[])
        self._num_left = 0
        self._over = asyncio.Event()
        request = _request(is_stream=is_stream, key=key)
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


def _request(*, is_stream: bool, key: str) -> bytes:
    message = {"role": "user", "content": "What color is it?"}
    body = json.dumps({"model": "instant", "stream": is_stream, "max_tokens": 8, "messages": [message]}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    head += f"authorization: Bearer {key}\r\n" if key else ""
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


@contextmanager
def a_worker(*, is_fleet: bool) -> Iterator[Worker]:
    """A worker that answers at once: in this process, or in another one behind the router."""
    if not is_fleet:
        yield InstantWorker()
        return
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.bare_worker", str(port)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield fleet_of_one(f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait()


def _load(args: argparse.Namespace, worker: Worker) -> Load:
    if not args.refused:
        return Load(worker, is_stream=args.stream, key="", overrides=args.set)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "keys.toml"
        path.write_text(LIMITS)
        key = new_key(path, "loud", ["infer"])
        sys.stderr = Path("/dev/null").open("w")  # noqa: SIM115 - as long as the process
        configure_logging("info")
        return Load(worker, is_stream=args.stream, key=key, overrides=[*args.set, f"gateway.keys_file={path}"])


async def main(args: argparse.Namespace) -> None:
    """Print microseconds of each round, the least last, or where the time goes."""
    settle()
    with a_worker(is_fleet=args.fleet) as worker:
        await _measure(args, worker)


async def _measure(args: argparse.Namespace, worker: Worker) -> None:
    load = _load(args, worker)
    await load.send(WARM_UP)
    if args.profile:
        with cProfile.Profile() as profile:
            await load.send(REQUESTS)
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)
        return
    if args.paced:
        for _ in sys.stdin:  # nothing else is to run meanwhile
            print(await _round(load, args.requests), flush=True)
        return
    sampled = Sampled()
    with sampled if args.layers else nullcontext():
        rounds = [await _round(load, args.requests) for _ in range(ROUNDS)]
    if args.layers:
        for which in (sampled.rooms, sampled.modules, sampled.functions):
            print(sampled.table(statistics.mean(rounds), which, 45), end="\n\n")
    print(" ".join(f"{one:.1f}" for one in rounds), f"us; least {min(rounds):.1f}")


async def _round(load: Load, num_requests: int) -> float:
    """Microseconds of CPU time for a request."""
    started_s = time.process_time()
    await load.send(num_requests)
    return (time.process_time() - started_s) / num_requests * 1e6


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--refused", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.FIELD=VALUE")
    parser.add_argument("--fleet", action="store_true")
    parser.add_argument("--requests", type=int, default=REQUESTS, help="of each round")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--layers", action="store_true")
    parser.add_argument("--paced", action="store_true", help="a round for each line of standard input, and no others")
    uvloop.run(main(parser.parse_args()))
