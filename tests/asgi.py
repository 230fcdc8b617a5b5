"""Calls an ASGI application without a socket, and can leave at any moment, as clients do."""

import asyncio
import json


class Call:
    """One HTTP request. `leave()` closes the connection; `read_slowly()` lets the application wait for its writes."""

    def __init__(self, app, path, body=None, *, method=None, headers=(), pieces=None):
        self._app = app
        self._pieces = pieces or [b"" if body is None else json.dumps(body).encode()]
        self._left = asyncio.Event()
        self._may_write = asyncio.Event()
        self._may_write.set()
        self.wrote = asyncio.Event()
        self.messages = []
        self.scope = {
            "type": "http",
            "method": method or ("GET" if body is None and pieces is None else "POST"),
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
            "http_version": "1.1",
            "scheme": "http",
            "server": ("test", 80),
            "client": ("test", 1),
        }

    def leave(self):
        self._left.set()

    def read_slowly(self):
        self._may_write.clear()

    async def run(self):
        await self._app(self.scope, self._receive, self._send)
        return self

    async def _receive(self):
        if self._pieces:
            piece = self._pieces.pop(0)
            if piece is None:  # a body that never comes
                await self._left.wait()
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": piece, "more_body": bool(self._pieces)}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        await self._may_write.wait()
        self.messages.append(message)
        self.wrote.set()

    @property
    def status(self):
        return self.messages[0]["status"] if self.messages else None

    @property
    def headers(self):
        return {name.decode(): value.decode() for name, value in self.messages[0]["headers"]}

    @property
    def body(self):
        return b"".join(message.get("body", b"") for message in self.messages[1:])

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json["error"]

    @property
    def is_complete(self):
        return bool(self.messages) and not self.messages[-1].get("more_body", False)

    @property
    def events(self):
        """Server-sent events; the last is '[DONE]'."""
        lines = [line.removeprefix("data: ") for line in self.body.decode().split("\n\n") if line]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]


async def call(app, path, body=None, **options):
    """Run one request to its end."""
    return await Call(app, path, body, **options).run()
