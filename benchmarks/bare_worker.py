"""A worker of nothing but a socket and an HTTP parser: answers a chat completion at once, with fixed bytes.

What stands before it in a benchmark of gateways, so that what is measured is the gateway.
"""

import asyncio
import json
import sys
from typing import Any

import httptools
import uvloop

_HEAD = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)


def whole() -> bytes:
    """A complete answer of eight tokens."""
    message = {"role": "assistant", "content": "red " * 8}
    usage = {"prompt_tokens": 8, "completion_tokens": 8, "total_tokens": 16}
    choice = {"index": 0, "message": message, "finish_reason": "length"}
    body = {"id": "chatcmpl-0", "object": "chat.completion", "created": 0, "model": "instant", "choices": [choice]}
    text = json.dumps(body | {"usage": usage})
    return (_HEAD.format(length=len(text)) + text).encode()


def event(**more: Any) -> bytes:
    """One event of a stream, as one HTTP chunk."""
    body = {"id": "chatcmpl-0", "object": "chat.completion.chunk", "created": 0, "model": "instant"}
    data = f"data: {json.dumps(body | more)}\n\n"
    return f"{len(data):x}\r\n{data}\r\n".encode()


WHOLE = whole()
EVENT = event(choices=[{"index": 0, "delta": {"content": "red "}, "finish_reason": None}])
LAST = (
    event(choices=[{"index": 0, "delta": {}, "finish_reason": "length"}])
    + event(choices=[], usage={"prompt_tokens": 8, "completion_tokens": 256, "total_tokens": 264})
    + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
)
LIST = b'{"object": "list", "data": [{"id": "instant", "object": "model", "created": 0, "owned_by": "bench"}]}'


class Connection(asyncio.Protocol):
    """One client. Streams have as many events as the request's `max_tokens`, one for each turn of the loop."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # the one that TCP gets
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)
        self.start = b""
        self.url = b""

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.url = url
        self.start = b""

    def on_body(self, body: bytes) -> None:
        if len(self.start) < 1024:
            self.start += body[:1024]

    def on_message_complete(self) -> None:
        if self.url.startswith(b"/v1/chat/completions"):
            if b'"stream": true' in self.start or b'"stream":true' in self.start:
                self._stream(json.loads(self.start)["max_tokens"])
            else:
                self.transport.write(WHOLE)
        else:
            self.transport.write(_HEAD.format(length=len(LIST)).encode() + LIST)

    def _stream(self, num_left: int) -> None:
        self.transport.write(_STREAM_HEAD)
        loop = asyncio.get_running_loop()

        def step(num_left: int) -> None:
            self.transport.write(EVENT if num_left else LAST)
            if num_left:
                loop.call_soon(step, num_left - 1)

        step(num_left)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", int(sys.argv[1]))
    print("listening", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
