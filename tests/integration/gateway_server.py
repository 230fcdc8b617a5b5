"""A real server on loopback around a scripted worker, in the test's own loop."""

import asyncio
import socket
from contextlib import asynccontextmanager

from chiasm.gateway import create_app
from chiasm.launch.server import address_of, bind, serve_app
from chiasm.settings import GatewaySettings
from tests.fakes import FakeIngest, FakeWorker

PATIENCE_S = 30.0  # for what happens at once, unless the machine has other work


class Running:
    """A server under test."""

    def __init__(self, worker, ingest, settings):
        self.worker = worker
        self.ingest = ingest
        self.settings = settings
        self.app = create_app(worker, ingest, settings)
        self.gateway = self.app.state.gateway
        self.listener = bind("127.0.0.1", 0)
        self.address = address_of(self.listener)
        self.port = self.listener.getsockname()[1]
        self.stop = asyncio.Event()
        self.task = None

    async def __aenter__(self):
        ready = asyncio.Event()
        self.task = asyncio.create_task(
            serve_app(self.app, self.gateway, self.listener, self.settings, self.stop, ready.set)
        )
        await asyncio.wait_for(ready.wait(), PATIENCE_S)
        return self

    async def __aexit__(self, *_):
        self.stop.set()
        await asyncio.wait_for(self.task, 2 * PATIENCE_S)

    def outcomes(self):
        """Requests that ended, by outcome."""
        totals = {}
        for metric in self.gateway.metrics.registry.collect():
            for sample in metric.samples:
                if sample.name == "chiasm_requests_total":
                    totals[sample.labels["outcome"]] = totals.get(sample.labels["outcome"], 0) + int(sample.value)
        return totals

    def num_received(self):
        """Requests that reached a generation endpoint."""
        return sum(
            int(sample.value)
            for metric in self.gateway.metrics.registry.collect()
            for sample in metric.samples
            if sample.name == "chiasm_requests_received_total"
        )

    async def until_idle(self, timeout_s=PATIENCE_S):
        """Wait until nothing is open anywhere; fails when that does not happen."""
        await until(
            lambda: not (self.gateway.admission.num_open or self.worker.num_open or self.ingest.num_open), timeout_s
        )
        assert self.gateway.admission.num_running == 0

    async def until_ended(self, count, timeout_s=PATIENCE_S):
        """Wait until so many requests have ended."""
        await until(lambda: sum(self.outcomes().values()) >= count, timeout_s)

    async def connect(self):
        """A raw connection."""
        return await asyncio.open_connection("127.0.0.1", self.port)


async def until(condition, timeout_s=PATIENCE_S):
    """Wait for a condition that nothing announces."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - what is waited for knows nothing of tests
            await asyncio.sleep(0.005)


def running(script=None, **settings):
    """A server around a worker that follows `script`."""
    return Running(FakeWorker(script), FakeIngest(), GatewaySettings(**settings))


def post_bytes(body: bytes, path="/v1/chat/completions", headers=()):
    """One HTTP/1.1 request as bytes."""
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: x",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def read_response(reader):
    """Status, headers and body of one response."""
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)).decode()
    status = int(head.split(" ", 2)[1])
    headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head.split("\r\n")[1:] if line)}
    if "content-length" in headers:
        body = await asyncio.wait_for(reader.readexactly(int(headers["content-length"])), PATIENCE_S)
    else:
        body = b""
        while size := int((await asyncio.wait_for(reader.readline(), PATIENCE_S)).strip(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    return status, headers, body


@asynccontextmanager
async def connected(server):
    """A raw connection that is closed at the end."""
    reader, writer = await server.connect()
    try:
        yield reader, writer
    finally:
        writer.close()


def reset(writer):
    """Close a connection with RST instead of FIN, as a crashed client does."""
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    writer.transport.abort()
