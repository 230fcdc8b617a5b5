"""A web server on loopback that misbehaves on purpose, and counts."""

import asyncio
import contextlib


class Loopback:
    """Every connection is handed to the behaviour that its path names; `requests` holds what was asked."""

    def __init__(self, tls=None):
        self._tls = tls
        self.behaviours = {}
        self.requests = []
        self.num_connections = 0
        self.num_open = 0
        self.max_open = 0
        self.num_bytes_sent = 0
        self._server = None
        self._tasks = set()

    @property
    def port(self):
        return self._server.sockets[0].getsockname()[1]

    def url(self, path, host="127.0.0.1"):
        return f"http://{host}:{self.port}{path}"

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader, writer):
        task = asyncio.current_task()
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.num_connections += 1
        self.num_open += 1
        self.max_open = max(self.max_open, self.num_open)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    head = (await reader.readuntil(b"\r\n\r\n")).decode()
                    self.requests.append(head)
                    await self.behaviours[head.split()[1].partition("?")[0]](self, reader, writer)
        finally:
            self.num_open -= 1
            writer.close()

    async def send(self, writer, data):
        self.num_bytes_sent += len(data)
        writer.write(data)
        await writer.drain()


def answer(body=b"", status="200 OK", headers=(), length=None):
    """Answer whole, with a Content-Length that may lie, and close."""

    async def behave(server, reader, writer):
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}", *headers]
        await server.send(writer, "\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        if length is not None and length != len(body):
            writer.close()

    return behave


def redirect(location, status="302 Found"):
    return answer(b"", status, [f"Location: {location}"])


async def hang(server, reader, writer):
    """Accept, read the request, never answer."""
    await reader.read()


async def reset(server, reader, writer):
    writer.transport.abort()


async def garbage(server, reader, writer):
    await server.send(writer, b"SSH-2.0-OpenSSH_9.9\r\n")
    writer.close()


def drip(body, pause_s):
    """A body of honest length, one byte at a time."""

    async def behave(server, reader, writer):
        await server.send(writer, f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        for byte in body:
            await server.send(writer, bytes([byte]))
            await asyncio.sleep(pause_s)

    return behave


def endless(start=b""):
    """A chunked body that never ends."""

    async def behave(server, reader, writer):
        await server.send(writer, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        piece = start or bytes(65536)
        while True:
            await server.send(writer, b"%x\r\n%s\r\n" % (len(piece), piece))
            piece = bytes(65536)
            await asyncio.sleep(0)

    return behave


def slow(behaviour, pause_s):
    async def behave(server, reader, writer):
        await asyncio.sleep(pause_s)
        await behaviour(server, reader, writer)

    return behave
