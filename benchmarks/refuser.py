"""A server that does nothing but refuse: each request is answered with 429, in as little time as Python has."""

import asyncio
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httptools
import uvloop

_BODY = b'{"error":{"message":"no","type":"rate_limit_error","param":null,"code":"rate_limited"}}'
_ANSWER = (
    b"HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\ncontent-length: %d\r\nretry-after: 1\r\n\r\n"
    % len(_BODY)
) + _BODY


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        self._transport.write(_ANSWER)


async def _serve(said: Any) -> None:
    server = await asyncio.get_running_loop().create_server(_Connection, "127.0.0.1", 0)
    said.put(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    await server.serve_forever()


def _run(said: Any) -> None:
    uvloop.run(_serve(said))


@contextmanager
def refuse_all() -> Iterator[str]:
    """Run it in a process of its own inside the block; gives its address."""
    context = multiprocessing.get_context("spawn")
    said = context.Queue()
    process = context.Process(target=_run, args=(said,), daemon=True)
    process.start()
    try:
        yield said.get(timeout=60)
    finally:
        process.kill()
        process.join(10)
