"""A server whose delays are known: it streams a fixed number of chunks at fixed times after a request has come.

    python -m benchmarks.delay_server --port 0 --ttft-ms 50 --tpot-ms 5

It prints its address. `--stall-at-s` and `--stall-s` make it stop answering
once, for a while.
"""

import argparse
import asyncio
import json
import socket
import time

import httptools
import uvloop

_CHUNK = b'data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"w "}}]}\n\n'
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _last(num_tokens: int) -> bytes:
    usage = {"prompt_tokens": 1, "completion_tokens": num_tokens, "total_tokens": 1 + num_tokens}
    chunk = {"object": "chat.completion.chunk", "choices": [], "usage": usage}
    return _framed(f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode()) + b"0\r\n\r\n"


class Delays:
    """When chunks leave, in seconds after a request's last byte."""

    def __init__(self, ttft_s: float, tpot_s: float, num_tokens: int, stall: tuple[float, float]) -> None:
        self.ttft_s, self.tpot_s, self.num_tokens, self.stall = ttft_s, tpot_s, num_tokens, stall
        self.last = _last(num_tokens)
        self.whole = self._whole()
        self.first_s: float | None = None

    def _whole(self) -> bytes:
        body = json.dumps({"data": [{"id": "delay", "object": "model"}], "usage": {"prompt_tokens": 1}}).encode()
        return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)

    def held_until_s(self, now_s: float) -> float:
        """The stall's end for what would be sent in it, else now."""
        if self.first_s is None:
            self.first_s = now_s
        begin_s = self.first_s + self.stall[0]
        return begin_s + self.stall[1] if begin_s <= now_s < begin_s + self.stall[1] else now_s


class Connection(asyncio.Protocol):
    """One connection of the server."""

    def __init__(self, delays: Delays) -> None:
        self._delays = delays
        self._parser = httptools.HttpRequestParser(self)
        self._is_stream = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._is_stream = False

    def on_body(self, data: bytes) -> None:
        self._is_stream = self._is_stream or b'"stream":true' in data

    def on_message_complete(self) -> None:
        if not self._is_stream:
            self._transport.write(self._delays.whole)
            return
        self._at(time.perf_counter() + self._delays.ttft_s, 0)

    def _at(self, due_s: float, number: int) -> None:
        """Send chunk `number` at its time; the last millisecond is waited for in turns of the loop."""
        left_s = self._delays.held_until_s(due_s) - time.perf_counter()
        if left_s > 0:
            loop = asyncio.get_running_loop()
            if left_s > 0.0015:
                loop.call_later(left_s - 0.001, self._at, due_s, number)
            else:
                loop.call_soon(self._at, due_s, number)
            return
        if self._transport.is_closing():
            return
        self._transport.write((_HEAD if number == 0 else b"") + _framed(_CHUNK))
        if number + 1 == self._delays.num_tokens:
            self._transport.write(self._delays.last)
        else:
            self._at(due_s + self._delays.tpot_s, number + 1)


async def serve(port: int, delays: Delays) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Connection(delays), "127.0.0.1", port, backlog=4096)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ttft-ms", type=float, default=50.0)
    parser.add_argument("--tpot-ms", type=float, default=5.0)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--stall-at-s", type=float, default=0.0)
    parser.add_argument("--stall-s", type=float, default=0.0)
    a = parser.parse_args()
    delays = Delays(a.ttft_ms / 1e3, a.tpot_ms / 1e3, a.tokens, (a.stall_at_s, a.stall_s))
    uvloop.run(serve(a.port, delays))


if __name__ == "__main__":
    main()
