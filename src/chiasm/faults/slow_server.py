"""A web server of this host that begins to send a picture and never goes on."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from chiasm.faults.fault import Fault

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\ncontent-length: 100000\r\n\r\n\x89PNG\r\n\x1a\n"


class SlowServer:
    """Tells the present fault of each download."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._fault: Callable[[], Fault | None] = lambda: None
        self.url = ""

    async def start(self, fault: Callable[[], Fault | None]) -> int:
        """Listen; returns the port."""
        self._fault = fault
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/never.png"
        return port

    async def aclose(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(_HEAD)
            fault = self._fault()
            if fault is not None:
                await fault.download_called()
            await reader.read()
        writer.close()
