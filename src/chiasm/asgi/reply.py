"""Writing responses at the level of ASGI messages: nothing between a token and the socket that need not be there."""

from starlette.types import Send

Headers = list[tuple[bytes, bytes]]

_JSON = (b"content-type", b"application/json")
_EVENT_STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies that buffer would hold tokens back
]


async def json_reply(send: Send, status: int, body: bytes, headers: Headers) -> None:
    """Send a whole JSON response."""
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [_JSON, length, *headers]})
    await send({"type": "http.response.body", "body": body})


class EventStreamReply:
    """A response of server-sent events. Its status line waits for the first bytes: earlier failures get their own."""

    def __init__(self, send: Send, headers: Headers) -> None:
        self._send = send
        self._headers = headers
        self.is_started = False

    async def write(self, data: bytes, *, is_last: bool = False) -> None:
        """Send complete events; waits while the client reads more slowly than we write."""
        if not self.is_started:
            self.is_started = True
            headers = [*_EVENT_STREAM, *self._headers]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": data, "more_body": not is_last})
