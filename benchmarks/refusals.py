"""What refusals cost the server, over sockets: clients that ask again as soon as they are refused.

Connections of one tenant beyond its limit send the same request again when its answer is there. For each number of
them, with and without `gateway.refusal_delay_s`: refusals a second, and the CPU time of the server's process for one.
"""

import argparse
import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvloop

from benchmarks import machine
from benchmarks.tenants import PATH, Server, served, text_body

RESULTS = Path(__file__).parent / "results/operations"
LIMITS = "[tenants.loud]\nmax_requests_per_minute = 0.001\n"
WARM_UP_S = 1.0


class Asker(asyncio.Protocol):
    """A connection that sends its request again after each answer."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.num_refused = 0
        self._rest = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._rest += data
        head, found, body = self._rest.partition(b"\r\n\r\n")
        if not found or len(body) < int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]):
            return
        self._rest = b""
        self.num_refused += head.startswith(b"HTTP/1.1 429 ")
        self._transport.write(self._request)


def request_of(server: Server, words: int) -> bytes:
    body = json.dumps(text_body(1, words, 16) | {"stream": False}).encode()  # the first one is let in
    head = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Authorization: {server.headers('loud')['Authorization']}\r\n\r\n".encode() + body


def cpu_s(pid: int) -> float:
    """CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def flood(server: Server, connections: int, options: argparse.Namespace) -> dict[str, float]:
    """Refusals a second, and what one costs the server."""
    parts, request = urlsplit(server.address), request_of(server, options.words)
    loop = asyncio.get_running_loop()
    made = [
        await loop.create_connection(lambda: Asker(request), parts.hostname, parts.port) for _ in range(connections)
    ]
    await asyncio.sleep(WARM_UP_S)
    before = sum(asker.num_refused for _, asker in made)
    cpu_before_s, started_s = cpu_s(server.pid), time.perf_counter()
    await asyncio.sleep(options.seconds)
    took_s, used_s = time.perf_counter() - started_s, cpu_s(server.pid) - cpu_before_s
    count = sum(asker.num_refused for _, asker in made) - before
    for transport, _ in made:
        transport.abort()
    return {
        "refused_per_s": count / took_s,
        "cpu_us": 1e6 * used_s / count if count else 0.0,
        "cpu_share": used_s / took_s,
    }


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks refusals", description=__doc__)
    parser.add_argument("--connections", type=int, nargs="*", default=[8, 64, 512])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each")
    parser.add_argument("--words", type=int, default=300)
    parser.add_argument("--delays-s", type=float, nargs="*", default=[0.0, 1.0], help="gateway.refusal_delay_s")
    parser.add_argument("--name", default="", help="end of the result file's name; none: nothing is written")
    options = parser.parse_args(argv)
    described, refusals = machine.describe(), []
    for delay_s in options.delays_s:
        with served(("loud",), LIMITS, [f"gateway.refusal_delay_s={delay_s}"], log_level="info") as server:
            for connections in options.connections:
                found = uvloop.run(flood(server, connections, options))
                refusals.append({"delay_s": delay_s, "connections": connections} | found)
                print(refusals[-1], flush=True)
    if options.name:
        path = RESULTS / f"{time.strftime('%Y-%m-%d')}-{options.name}.json"
        result = {"machine": described, "options": vars(options), "refusals": refusals}
        path.write_text(json.dumps(result, indent=1) + "\n")
        print(f"written: benchmarks/results/operations/{path.name}")
