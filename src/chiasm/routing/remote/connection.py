"""HTTP to one worker: pooled connections, deadlines, and every way in which they fail as an error of ours."""

import asyncio
from collections.abc import Mapping
from urllib.parse import urlsplit

from chiasm.errors import (
    ChiasmError,
    DeadlineExceededError,
    EngineDeadError,
    EngineError,
    InvalidSettingError,
    OverloadedError,
)
from chiasm.observability.trace import outgoing
from chiasm.protocol.wire import WireRequest, decode_fault
from chiasm.routing.remote.channel import Channel

MAX_BODY_BYTES = 256 * 2**20
"""Largest body that is read from a worker."""

KEEP_ALIVE_S = 3.0
"""Below the 5 s after which vLLM's servers close: a connection must not be used again while it ends."""

_UNIX = "unix:"
_MAX_CHANNELS = 4096
_CONNECT_TIMEOUT_S = 5.0


class WorkerConnection:
    """All connections to one worker. Lives on one event loop.

    Its own HTTP client, since every request goes through it: aiohttp's takes three times as long for a call
    (benchmarks/micro/worker_wire.py).

    Attributes:
        name: What follows "worker" in errors; its address is nobody's business.
    """

    def __init__(self, address: str, token: str | None, headers: Mapping[str, str] | None = None) -> None:
        """Take `http://host:port`, or `unix:` and a path, and headers for every call. Nothing is connected yet."""
        self._endpoint = endpoint_of(address)
        self._headers = _headers(self._endpoint, token, headers or {})
        self._idle: list[Channel] = []  # the last one used comes first, so that others grow old
        self._channels: set[Channel] = set()
        self._num_connecting = 0
        self._is_closed = False
        self.name = "that is to join"

    def post(self, request: WireRequest, timeout_s: float) -> "_Call":
        """Call the worker; leaving the block before the answer was read closes the connection, which cancels there.

        `timeout_s` is for all of it: connecting, the answer's head, and whatever is read in the block.

        Raises:
            ChiasmError: What the worker refused with.
            DeadlineExceededError: `timeout_s` passed.
            EngineDeadError: It cannot be reached, or the connection was lost.
        """
        return _Call(self, b"POST ", request, timeout_s)

    async def get(self, path: str, timeout_s: float) -> bytes:
        """The body of a `GET`. Raises as `post` does."""
        async with _Call(self, b"GET ", WireRequest(path, ()), timeout_s) as channel:
            return await self.whole(channel)

    async def whole(self, channel: Channel) -> bytes:
        """Read a body, up to `MAX_BODY_BYTES`."""
        pieces, num_bytes = [], 0
        while piece := await channel.read():
            pieces.append(piece)
            num_bytes += len(piece)
            if num_bytes > MAX_BODY_BYTES:
                raise EngineError(f"Worker {self.name} sent more than {MAX_BODY_BYTES} bytes")
        return b"".join(pieces)

    async def aclose(self) -> None:
        """Close all connections, also those in use."""
        self._is_closed = True
        for channel in list(self._channels):
            channel.close()
        await asyncio.sleep(0)  # transports close in the loop's next turn

    async def begin(self, deadline_s: float) -> Channel:
        """A connection for one call, pooled or new; `end` follows."""
        if self._is_closed:
            raise EngineDeadError(f"Worker {self.name} is closed")
        return self._pooled(asyncio.get_running_loop().time()) or await self._connected(deadline_s)

    async def send(self, channel: Channel, method: bytes, request: WireRequest) -> None:
        """Send a call and wait for the answer's head. Raises what the worker refused with."""
        trace = outgoing.get()
        headers = self._headers + b"traceparent: " + trace + b"\r\n" if trace else self._headers
        length = b"Content-Length: %d\r\n\r\n" % sum(map(len, request.pieces))
        channel.send(method + request.path.encode() + headers + length, *request.pieces)
        await self._check(channel)

    def end(self, channel: Channel) -> None:
        """Keep a connection for the next call, if its answer was read, or close it."""
        if channel.is_reusable:
            self._idle.append(channel)
        else:
            channel.close()

    def translated(self, error: OSError) -> ChiasmError:
        """An error of a connection as one of ours."""
        if isinstance(error, TimeoutError):
            return DeadlineExceededError(
                f"Worker {self.name} did not finish in time", hint="Raise timeout_s or send less."
            )
        if isinstance(error, ConnectionRefusedError | FileNotFoundError):
            return EngineDeadError(f"Worker {self.name} cannot be reached", hint="See whether it runs")
        return EngineDeadError(f"The connection to worker {self.name} was lost", hint="Send the request again")

    def _pooled(self, now_s: float) -> Channel | None:
        while self._idle:
            channel = self._idle.pop()
            if channel.is_reusable and now_s - channel.idle_since_s < KEEP_ALIVE_S:
                return channel
            channel.close()
        return None

    async def _connected(self, deadline_s: float) -> Channel:
        if len(self._channels) + self._num_connecting >= _MAX_CHANNELS:
            raise OverloadedError(f"{_MAX_CHANNELS} calls to worker {self.name} are open")
        loop = asyncio.get_running_loop()
        self._num_connecting += 1
        try:
            async with asyncio.timeout_at(min(deadline_s, loop.time() + _CONNECT_TIMEOUT_S)):
                channel = await self._connect()
        except TimeoutError as error:
            if loop.time() >= deadline_s:
                raise
            raise ConnectionRefusedError("Nobody answers") from error
        finally:
            self._num_connecting -= 1
        if self._is_closed or not channel.is_reusable:
            channel.close()
            raise ConnectionResetError("Closed at once")
        self._channels.add(channel)
        return channel

    async def _connect(self) -> Channel:
        loop, where = asyncio.get_running_loop(), self._endpoint
        if isinstance(where, str):
            _, channel = await loop.create_unix_connection(lambda: Channel(self._lose), where)
        else:
            _, channel = await loop.create_connection(lambda: Channel(self._lose), *where)
        return channel

    def _lose(self, channel: Channel) -> None:
        self._channels.discard(channel)
        if channel in self._idle:
            self._idle.remove(channel)

    async def _check(self, channel: Channel) -> None:
        status = await channel.wait_status()
        if status == 200:
            return
        if status == 401:
            raise EngineError(f"Worker {self.name} does not take our token", hint="Give both sides the same token")
        raise decode_fault(status, await self.whole(channel))


class _Call:
    """One call, as a block. Not a generator: every request passes through it."""

    __slots__ = ("_channel", "_connection", "_method", "_request", "_timeout_s", "_timer")

    def __init__(self, connection: WorkerConnection, method: bytes, request: WireRequest, timeout_s: float) -> None:
        self._connection = connection
        self._method = method
        self._request = request
        self._timeout_s = timeout_s

    async def __aenter__(self) -> Channel:
        loop, connection = asyncio.get_running_loop(), self._connection
        deadline_s = loop.time() + self._timeout_s
        try:
            channel = self._channel = await connection.begin(deadline_s)
            self._timer = loop.call_at(deadline_s, channel.expire)
            try:
                await connection.send(channel, self._method, self._request)
            except BaseException:
                self._end()
                raise
        except OSError as error:
            raise connection.translated(error) from error
        return channel

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._end()
        if isinstance(error, OSError):
            raise self._connection.translated(error) from error

    def _end(self) -> None:
        self._timer.cancel()
        self._connection.end(self._channel)


def endpoint_of(address: str) -> str | tuple[str, int]:
    """What an address of a worker names: a path, or host and port. Raises `InvalidSettingError` for what is none."""
    if address.startswith(_UNIX):
        return address.removeprefix(_UNIX)
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")  # connecting would, and raise another error
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    if parts.scheme != "http" or not host:
        raise InvalidSettingError("This is no address of a worker", hint="Use 'unix:/path' or 'http://host:port'")
    return host, port or 80


def _headers(endpoint: str | tuple[str, int], token: str | None, more: Mapping[str, str]) -> bytes:
    """What follows the path of every request."""
    if token and not (token.isascii() and token.isprintable()):
        raise InvalidSettingError("A worker's token is made of printable ASCII characters")
    host = "worker" if isinstance(endpoint, str) else f"[{endpoint[0]}]" if ":" in endpoint[0] else endpoint[0]
    authorization = f"Authorization: Bearer {token}\r\n" if token else ""
    others = "".join(f"{name}: {value}\r\n" for name, value in more.items())
    return f" HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n{authorization}{others}".encode()
