"""HTTP to one worker: pooled connections, deadlines, and every way in which they fail as an error of ours."""

import io
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import aiohttp

from chiasm.errors import DeadlineExceededError, EngineDeadError, EngineError
from chiasm.protocol.wire import WireRequest, decode_fault

MAX_BODY_BYTES = 256 * 2**20
"""Largest body that is read from a worker."""

_UNIX = "unix:"
_MAX_CONNECTIONS = 4096
_KEEP_ALIVE_S = 3.0  # below the 5 s after which vLLM's servers close: a connection must not be reused while it ends
_CONNECT_TIMEOUT_S = 5.0
_ONE_WRITE_BYTES = 2**18
_JSON = {"Content-Type": "application/json"}


class WorkerConnection:
    """All connections to one worker. Lives on the loop it was made on.

    Attributes:
        name: What errors call the worker; its address is nobody's business.
    """

    def __init__(self, address: str, token: str | None) -> None:
        """Take `http://host:port`, or `unix:` and a path. Nothing is connected yet."""
        connector: aiohttp.BaseConnector
        if address.startswith(_UNIX):
            connector = aiohttp.UnixConnector(
                address.removeprefix(_UNIX), limit=_MAX_CONNECTIONS, keepalive_timeout=_KEEP_ALIVE_S
            )
            self._base = "http://worker"
        else:
            connector = aiohttp.TCPConnector(limit=_MAX_CONNECTIONS, keepalive_timeout=_KEEP_ALIVE_S)
            self._base = address.rstrip("/")
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers={"Authorization": f"Bearer {token}"} if token else None,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept-Encoding", "Accept"),
        )
        self.name = "worker"

    @asynccontextmanager
    async def post(self, request: WireRequest, timeout_s: float) -> AsyncIterator[aiohttp.ClientResponse]:
        """Call the worker; leaving the block before the answer was read closes the connection, which cancels there.

        The deadline covers everything up to the end of the block in which the answer is waited for.

        Raises:
            ChiasmError: What the worker refused with.
            DeadlineExceededError: `timeout_s` passed.
            EngineDeadError: It cannot be reached, or the connection was lost.
        """
        body = request.body if len(request.body) <= _ONE_WRITE_BYTES else io.BytesIO(request.body)
        with self._translated():
            async with self._session.post(
                self._base + request.path, data=body, headers=_JSON, timeout=_timeout(timeout_s)
            ) as response:
                await self._check(response)
                yield response

    async def get(self, path: str, timeout_s: float) -> bytes:
        """The body of a `GET`. Raises as `post` does."""
        with self._translated():
            async with self._session.get(self._base + path, timeout=_timeout(timeout_s)) as response:
                await self._check(response)
                return await self.whole(response)

    async def whole(self, response: aiohttp.ClientResponse) -> bytes:
        """Read a body, up to `MAX_BODY_BYTES`."""
        pieces, num_bytes = [], 0
        while piece := await response.content.readany():
            pieces.append(piece)
            num_bytes += len(piece)
            if num_bytes > MAX_BODY_BYTES:
                raise EngineError(f"Worker {self.name} sent more than {MAX_BODY_BYTES} bytes")
        return b"".join(pieces)

    async def aclose(self) -> None:
        """Close all connections, also those in use."""
        await self._session.close()

    async def _check(self, response: aiohttp.ClientResponse) -> None:
        if response.status == 200:
            return
        if response.status == 401:
            raise EngineError(f"Worker {self.name} does not take our token", hint="Give both sides the same token")
        raise decode_fault(response.status, await self.whole(response))

    @contextmanager
    def _translated(self) -> Iterator[None]:
        if self._session.closed:
            raise EngineDeadError(f"Worker {self.name} is closed")
        try:
            yield
        except aiohttp.ConnectionTimeoutError as error:
            raise self._lost() from error
        except TimeoutError as error:
            raise DeadlineExceededError(
                f"Worker {self.name} did not finish in time", hint="Raise timeout_s or send less."
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._lost() from error

    def _lost(self) -> EngineDeadError:
        return EngineDeadError(f"The connection to worker {self.name} was lost", hint="Send the request again")


def _timeout(timeout_s: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(_CONNECT_TIMEOUT_S, timeout_s), ceil_threshold=3600)
